//! Writes log lines on a thread of its own. A reader that stops reading a pipe loses lines; it does
//! not stop the server.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::Duration;

use tracing_subscriber::fmt::MakeWriter;

/// The unwritten lines, in bytes. Further lines are dropped.
const MAX_UNWRITTEN: usize = 1 << 20;

/// How long the last lines may take to be written.
const LAST_LINES: Duration = Duration::from_secs(1);

/// Queues lines and never blocks. Clones share the queue.
#[derive(Clone)]
pub struct LogWriter {
    queue: Sender<Entry>,
    counts: Arc<Counts>,
}

#[derive(Default)]
struct Counts {
    /// Bytes in the queue.
    unwritten: AtomicUsize,
    /// Lines since the last report.
    dropped: AtomicUsize,
}

enum Entry {
    Line(Vec<u8>),
    /// Answered once everything before it is written.
    Flush(Sender<()>),
}

impl LogWriter {
    /// Starts the thread that writes to `output`.
    pub fn start(output: impl Write + Send + 'static) -> io::Result<Self> {
        let (writer, entries) = Self::new();
        let counts = Arc::clone(&writer.counts);
        std::thread::Builder::new()
            .name("loquat-log".to_owned())
            .spawn(move || write_all(output, &entries, &counts))?;
        Ok(writer)
    }

    /// The other end of the queue is for the thread.
    fn new() -> (Self, Receiver<Entry>) {
        let (queue, entries) = mpsc::channel();
        let counts = Arc::default();
        (Self { queue, counts }, entries)
    }

    fn push(&self, line: &[u8]) {
        let more = |unwritten: usize| {
            let unwritten = unwritten + line.len();
            (unwritten <= MAX_UNWRITTEN).then_some(unwritten)
        };
        let counted = self.counts.unwritten.fetch_update(Relaxed, Relaxed, more);
        // Sending fails only if the thread is gone.
        if counted.is_err() || self.queue.send(Entry::Line(line.to_vec())).is_err() {
            self.counts.dropped.fetch_add(1, Relaxed);
        }
    }
}

/// Write errors are ignored: there is nowhere to report them.
fn write_all(mut output: impl Write, entries: &Receiver<Entry>, counts: &Counts) {
    for entry in entries {
        match entry {
            Entry::Line(line) => {
                let _ = output.write_all(&line);
                counts.unwritten.fetch_sub(line.len(), Relaxed);
            }
            Entry::Flush(done) => {
                let _ = output.flush();
                let _ = done.send(());
            }
        }
        let lines = counts.dropped.swap(0, Relaxed);
        if lines > 0 {
            tracing::warn!(lines, "the log was not read in time; lines were dropped");
        }
    }
}

impl Write for LogWriter {
    /// The subscriber writes each line at once.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.push(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for LogWriter {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        self.clone()
    }
}

/// Waits for the last lines when it is dropped, for a short time.
pub struct LastLines(pub LogWriter);

impl Drop for LastLines {
    fn drop(&mut self) {
        let (done, written) = mpsc::channel();
        if self.0.queue.send(Entry::Flush(done)).is_ok() {
            // The process ends anyway.
            let _ = written.recv_timeout(LAST_LINES);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use tracing::Dispatch;
    use tracing::dispatcher::with_default;

    use super::*;
    use crate::config::{Log, Telemetry};
    use crate::telemetry::subscriber;

    /// A pipe that nobody reads while the test holds `unread`.
    #[derive(Clone, Default)]
    struct Pipe {
        unread: Arc<Mutex<()>>,
        text: Arc<Mutex<Vec<u8>>>,
    }

    impl Write for Pipe {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let _reading = self.unread.lock().unwrap();
            self.text.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn unread_log_drops_lines_and_counts_them() {
        const LINES: usize = 3000;
        let pipe = Pipe::default();
        let unread = pipe.unread.lock().unwrap();
        let (writer, entries) = LogWriter::new();
        let (subscriber, _guard) = subscriber(
            &Log::default(),
            &Telemetry::default(),
            writer.clone(),
            false,
        )
        .unwrap();
        let log = Dispatch::new(subscriber);
        std::thread::spawn({
            let (log, pipe) = (log.clone(), pipe.clone());
            let counts = Arc::clone(&writer.counts);
            move || with_default(&log, || write_all(pipe, &entries, &counts))
        });
        with_default(&log, || {
            let long = "x".repeat(1000);
            (0..LINES).for_each(|number| tracing::info!("{number} {long}"));
        });
        let dropped = writer.counts.dropped.load(Relaxed);
        assert!(writer.counts.unwritten.load(Relaxed) <= MAX_UNWRITTEN);
        drop(unread);
        drop(LastLines(writer));
        assert!(dropped > 0);
        let report = format!("lines were dropped lines={dropped}");
        // The report follows the lines that are in the queue.
        let text = loop {
            let text = String::from_utf8(pipe.text.lock().unwrap().clone()).unwrap();
            if text.lines().count() + dropped > LINES {
                break text;
            }
            std::thread::sleep(Duration::from_millis(1));
        };
        assert!(text.lines().any(|line| line.contains(&report)), "{report}");
        assert_eq!(text.lines().count() + dropped, LINES + 1);
    }
}
