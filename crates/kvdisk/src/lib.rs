//! Blocks of computed keys and values in files, so that prefixes survive eviction and restarts.
//!
//! A block is a fixed number of positions of a prompt. Its name is a hash of their tokens and media,
//! of all before them and of everything else that its bytes depend on ([`BlockKey`]), so a file that
//! is found is the right one, and conversations that begin the same share files. Two threads of
//! the cache read and write; no call but [`DiskCache::flush`] waits for the disk.
//!
//! Some sequences cannot be continued from blocks alone. They have a tail at their exact end: parts
//! in files of their own, and a record ([`TailRecord`]) that is written last, so that a tail is whole
//! or not found.
//!
//! Several processes may use one folder: files appear whole or not at all, a reader that finds a
//! file gone computes instead, and each process counts what all of them wrote.
//!
//! Not here: what the bytes mean (`session`), which sequences are stored and when (`engine`).
#![deny(missing_docs)]

mod block_file;
mod checksum;
mod folder;
mod key;
mod pace;
mod reader;
mod stats;
mod store;
mod tail;
mod writer;

pub use key::{BlockKey, MediaRun, PrefixContent, PrefixIdentity};
pub use reader::{BlockLoad, LoadEvent, TailSearch, Worth};
pub use stats::DiskStats;
pub use store::{Block, DiskCache, DiskOptions};
pub use tail::TailRecord;
