//! Package downloads of later stages, in the background while earlier stages compile.

use std::path::Path;
use std::sync::mpsc::{self, Receiver};
use std::thread;

use super::Stage;
use crate::error::Error;

/// Installs run one after the other on one thread. A failure is reported by the stage it belongs
/// to.
pub struct Installs {
    pending: Vec<(&'static str, Receiver<Result<(), Error>>)>,
}

impl Installs {
    pub fn start<'a>(root: &Path, stages: impl Iterator<Item = &'a Stage>) -> Self {
        let mut pending = Vec::new();
        let mut work = Vec::new();
        for stage in stages {
            if let Some(install) = stage.install {
                let (sender, receiver) = mpsc::channel();
                pending.push((stage.name, receiver));
                work.push((install, sender));
            }
        }
        let root = root.to_path_buf();
        thread::spawn(move || {
            for (install, sender) in work {
                // The receiver is gone only if the run has ended.
                let _ = sender.send(install(&root));
            }
        });
        Self { pending }
    }

    /// Waits for the install of a stage; stages without one need not wait.
    pub fn wait(&mut self, stage: &str) -> Result<(), Error> {
        let Some(index) = self.pending.iter().position(|(name, _)| *name == stage) else {
            return Ok(());
        };
        let (_, receiver) = self.pending.swap_remove(index);
        receiver.recv().unwrap_or_else(|_| {
            Err(Error::Missing {
                what: format!("the packages of stage `{stage}`: their install panicked"),
                remedy: format!("run `cargo xtask test --only {stage}`"),
            })
        })
    }
}
