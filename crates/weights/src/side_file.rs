//! Reads the small files in a model folder: configs, indexes, vocabularies and templates.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

/// The largest config, template or other settings file. Published ones have up to 2 MB.
pub const MAX_CONFIG_BYTES: u64 = 16 << 20;
/// The largest vocabulary or index of shards. Published ones have up to 40 MB.
pub const MAX_VOCABULARY_BYTES: u64 = 256 << 20;

/// Reads a file. Refuses files above `max` bytes, and anything that is not a regular file: reading
/// a pipe or a device may never end.
pub fn read_side_file(path: &Path, max: u64) -> io::Result<Vec<u8>> {
    let metadata = require_regular_file(path)?;
    let too_large = || {
        let message = format!("the file is larger than {max} bytes, the limit for its kind");
        io::Error::new(io::ErrorKind::FileTooLarge, message)
    };
    if metadata.len() > max {
        return Err(too_large());
    }
    let mut content = Vec::new();
    // The file may grow after its size was read.
    File::open(path)?.take(max + 1).read_to_end(&mut content)?;
    if content.len() as u64 > max {
        return Err(too_large());
    }
    Ok(content)
}

/// The metadata of a regular file; an error for pipes, devices, sockets and folders.
pub fn require_regular_file(path: &Path) -> io::Result<fs::Metadata> {
    let metadata = fs::metadata(path)?;
    if metadata.is_file() {
        Ok(metadata)
    } else {
        let message = "not a regular file";
        Err(io::Error::new(io::ErrorKind::InvalidInput, message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_files_and_folders_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config.json");
        fs::write(&path, b"{}  ").unwrap();
        assert_eq!(read_side_file(&path, 4).unwrap(), b"{}  ");
        let large = read_side_file(&path, 3).unwrap_err();
        assert!(large.to_string().contains("larger than 3 bytes"), "{large}");
        let folder = read_side_file(dir.path(), 3).unwrap_err();
        assert!(folder.to_string().contains("not a regular file"));
        let missing = read_side_file(&dir.path().join("missing"), 3).unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
    }

    #[cfg(unix)]
    #[test]
    fn devices_are_refused() {
        for device in ["/dev/zero", "/dev/stdin"] {
            let Err(error) = read_side_file(Path::new(device), 3) else {
                panic!("{device} was read");
            };
            assert!(!error.to_string().is_empty(), "{device}");
        }
    }

    /// Opening a pipe that nobody writes to would wait for ever.
    #[cfg(unix)]
    #[test]
    fn pipes_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config.json");
        let made = std::process::Command::new("mkfifo").arg(&path).status();
        assert!(made.unwrap().success());
        let error = read_side_file(&path, 3).unwrap_err();
        assert_eq!(error.to_string(), "not a regular file");
    }
}
