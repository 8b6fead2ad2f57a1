//! Runs the binary on a pseudo-terminal, with an emulator for the screen.

use std::io::{Read, Write};
use std::num::NonZeroU16;
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::Instant;

use pty_process::Size;
use pty_process::blocking::{Pty, open};

use crate::support::{HANG_TIMEOUT, ends};

pub const PROMPT: &str = ">>> ";
pub const CTRL_C: &str = "\x03";
pub const CTRL_D: &str = "\x04";
pub const ENTER: &str = "\r";
pub const ALT_ENTER: &str = "\x1b\r";
pub const TAB: &str = "\t";
pub const UP: &str = "\x1b[A";
pub const BACKSPACE: &str = "\x7f";

const ROWS: u16 = 60;
const COLUMNS: u16 = 100;

pub struct Terminal {
    child: Child,
    pty: Arc<Pty>,
    written: Receiver<Vec<u8>>,
    emulator: vt100::Parser,
    /// All received bytes.
    pub raw: Vec<u8>,
}

impl Terminal {
    /// Runs a command with the terminal as stdin, stdout and stderr.
    pub fn start(command: &Command) -> Self {
        let (pty, pts) = open().unwrap();
        pty.resize(Size::new(ROWS, COLUMNS)).unwrap();
        // Otherwise Ctrl-C discards unread output.
        let mut shell = Command::new("sh");
        shell.args(["-c", "stty noflsh && exec \"$0\" \"$@\""]);
        shell.arg(command.get_program()).args(command.get_args());
        shell.env("TERM", "xterm").env_remove("TERM_PROGRAM");
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => shell.env(name, value),
                None => shell.env_remove(name),
            };
        }
        let child = pty_process::blocking::Command::from(shell)
            .spawn(pts)
            .unwrap();
        let pty = Arc::new(pty);
        Self {
            written: read(pty.clone()),
            child,
            pty,
            emulator: vt100::Parser::new(size(ROWS), size(COLUMNS), 0),
            raw: Vec::new(),
        }
    }

    pub fn press(&mut self, keys: &str) {
        (&*self.pty).write_all(keys.as_bytes()).unwrap();
    }

    /// Waits until `seen` is true.
    #[track_caller]
    pub fn wait(&mut self, what: &str, seen: impl Fn(&Self) -> bool) {
        let deadline = Instant::now() + HANG_TIMEOUT;
        while !seen(self) {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.written.recv_timeout(left) {
                Ok(bytes) => self.show(&bytes),
                Err(RecvTimeoutError::Timeout) => panic!("no {what} on:\n{}", self.screen()),
                Err(RecvTimeoutError::Disconnected) => {
                    panic!("it ended without {what}, on:\n{}", self.screen())
                }
            }
        }
    }

    fn show(&mut self, bytes: &[u8]) {
        self.emulator.process(bytes);
        self.raw.extend(bytes);
    }

    /// The text on the screen.
    pub fn screen(&self) -> String {
        self.emulator.screen().contents()
    }

    /// The line of the cursor.
    pub fn line(&self) -> String {
        let screen = self.emulator.screen();
        let (row, _) = screen.cursor_position();
        let (_, columns) = screen.size();
        let mut rows = screen.rows(0, columns.get());
        rows.nth(row.into())
            .unwrap_or_default()
            .trim_end()
            .to_owned()
    }

    pub fn cursor(&self) -> (u16, u16) {
        self.emulator.screen().cursor_position()
    }

    /// Whether the first occurrence of a text on the screen is dimmed.
    #[track_caller]
    pub fn is_dim(&self, text: &str) -> bool {
        let screen = self.emulator.screen();
        let (_, columns) = screen.size();
        let rows = screen.rows(0, columns.get()).enumerate();
        let mut found = rows.filter_map(|(row, line)| Some((row, line.find(text)?, line)));
        let (row, at, line) = found.next().expect("it is on the screen");
        let first = line[..at].chars().count();
        let cells = first..first + text.chars().count();
        cells.into_iter().all(|column| {
            let cell = screen.cell(row as u16, column as u16);
            cell.is_some_and(|cell| cell.dim() || cell.contents() == " ")
        })
    }

    #[track_caller]
    pub fn expect(&mut self, text: &str) {
        self.wait(&format!("{text:?}"), |terminal| {
            terminal.screen().contains(text)
        });
    }

    /// Waits for an empty prompt.
    #[track_caller]
    pub fn ready(&mut self) {
        self.wait("prompt", |terminal| {
            terminal.line() == PROMPT.trim_end() && terminal.cursor().1 == PROMPT.len() as u16
        });
    }

    /// Types a line at the prompt and waits for its echo.
    #[track_caller]
    pub fn type_in(&mut self, line: &str) {
        self.ready();
        self.press(line);
        self.wait(&format!("echo of {line:?}"), |terminal| {
            let typed = format!("{PROMPT}{line}");
            terminal.line().starts_with(typed.trim_end())
        });
    }

    /// Types a line and sends it.
    #[track_caller]
    pub fn send(&mut self, line: &str) {
        self.type_in(line);
        self.press(ENTER);
    }

    /// Sends a line, waits for the next prompt, and returns the output between.
    #[track_caller]
    pub fn ask(&mut self, line: &str) -> String {
        self.send(line);
        self.ready();
        let screen = self.screen();
        let echo = format!("{PROMPT}{line}");
        let (_, output) = screen
            .rsplit_once(&echo)
            .expect("the line is on the screen");
        let output = output.trim().strip_suffix(PROMPT.trim_end());
        output.expect("a prompt follows").trim().to_owned()
    }

    pub fn resize(&mut self, rows: u16, columns: u16) {
        let screen = self.emulator.screen_mut();
        screen.set_size(size(rows), size(columns));
        self.pty.resize(Size::new(rows, columns)).unwrap();
    }

    /// Waits until the process exits, which is `true`, or the screen shows a text.
    #[track_caller]
    pub fn ends_before(&mut self, text: &str) -> bool {
        while !self.screen().contains(text) {
            match self.written.recv_timeout(HANG_TIMEOUT) {
                Ok(bytes) => self.show(&bytes),
                Err(RecvTimeoutError::Disconnected) => return true,
                Err(RecvTimeoutError::Timeout) => panic!("it hangs, on:\n{}", self.screen()),
            }
        }
        false
    }

    /// Waits for the exit; returns the exit code and the screen.
    #[track_caller]
    pub fn ends(mut self) -> (i32, String) {
        while let Ok(bytes) = self.written.recv_timeout(HANG_TIMEOUT) {
            self.show(&bytes);
        }
        (ends(&mut self.child), self.screen())
    }

    /// Leaves with `/exit`.
    #[track_caller]
    pub fn leave(mut self) {
        self.send("/exit");
        let (code, screen) = self.ends();
        assert_eq!(code, 0, "{screen}");
    }
}

impl Drop for Terminal {
    /// Kills the process of a failed test.
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn size(count: u16) -> NonZeroU16 {
    NonZeroU16::new(count).unwrap()
}

/// Forwards output until the process is gone, which Linux reports as an error. Reads little ahead:
/// the process waits while a test does not look, so that an endless answer stays endless.
fn read(pty: Arc<Pty>) -> Receiver<Vec<u8>> {
    let (sender, receiver) = sync_channel(1);
    std::thread::spawn(move || {
        let mut buffer = [0; 4096];
        while let Ok(count @ 1..) = (&*pty).read(&mut buffer) {
            if sender.send(buffer[..count].to_vec()).is_err() {
                return;
            }
        }
    });
    receiver
}
