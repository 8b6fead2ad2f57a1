//! Progress bars on stderr, for people; nothing when stderr is not a terminal.

use std::io::IsTerminal;

use indicatif::{ProgressBar, ProgressStyle};
use loquat_store::Progress;

use crate::terminal::remark;

const DOWNLOAD: &str = "{msg} {bar:30} {bytes}/{total_bytes} {bytes_per_sec} {eta}";
const SHARE: &str = "{msg} {bar:30} {percent}%";

fn bar(total: Option<u64>, template: &str, message: String) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = total.map_or_else(ProgressBar::new_spinner, ProgressBar::new);
    if let (Some(_), Ok(style)) = (total, ProgressStyle::with_template(template)) {
        bar.set_style(style);
    }
    bar.set_message(message);
    bar
}

/// Shows a download.
#[derive(Default)]
pub struct DownloadBar(Option<ProgressBar>);

impl Progress for DownloadBar {
    fn start(&mut self, what: &str, total_bytes: Option<u64>) {
        if !std::io::stderr().is_terminal() {
            remark(what);
        }
        self.0 = Some(bar(total_bytes, DOWNLOAD, what.to_owned()));
    }

    fn advance(&mut self, bytes: u64) {
        if let Some(bar) = &self.0 {
            bar.inc(bytes);
        }
    }

    fn note(&mut self, text: &str) {
        match &self.0 {
            Some(bar) => bar.suspend(|| remark(text)),
            None => remark(text),
        }
    }

    fn finish(&mut self) {
        if let Some(bar) = self.0.take() {
            bar.finish_and_clear();
        }
    }
}

/// Shows which share of something is done.
pub struct ShareBar(ProgressBar);

impl ShareBar {
    const STEPS: u64 = 1000;

    pub fn start(what: &str) -> Self {
        Self(bar(Some(Self::STEPS), SHARE, what.to_owned()))
    }

    pub fn set(&self, share: f32) {
        self.0.set_position((share * Self::STEPS as f32) as u64);
    }
}

impl Drop for ShareBar {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
