//! Files that flags name.

use std::io::{Read, Write};
use std::path::Path;

use loquat::media::{FrameSource, Limits, MediaError, probe};
use loquat_chat::{Image, Message, Tool, Video};
use loquat_server::ConversationFileError;
use serde_json::Value;

use crate::error::CliError;

/// The name for stdin.
const STDIN: &str = "-";

/// The text of a file.
pub fn text(flag: &'static str, path: &Path) -> Result<String, CliError> {
    read(path).map_err(|source| CliError::File {
        flag,
        path: path.to_owned(),
        source,
    })
}

fn read(path: &Path) -> std::io::Result<String> {
    if path != Path::new(STDIN) {
        return std::fs::read_to_string(path);
    }
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text)?;
    Ok(text)
}

/// An image file. Its header is checked here, and its pixels when it is sent.
pub fn image(flag: &'static str, path: &Path) -> Result<Image, CliError> {
    let bytes = media(flag, path, |bytes, limits| probe(bytes, limits).map(drop))?;
    Ok(Image::from_bytes(bytes).with_field(format!("{flag} {}", path.display())))
}

/// A video file. What its container says is checked here, and its frames when it is sent.
pub fn video(flag: &'static str, path: &Path) -> Result<Video, CliError> {
    let check = |bytes: &[u8], limits: &Limits| FrameSource::open(bytes, limits).map(drop);
    let bytes = media(flag, path, check)?;
    Ok(Video::from_bytes(bytes).with_field(format!("{flag} {}", path.display())))
}

/// The bytes of a file that `check` accepts.
fn media(
    flag: &'static str,
    path: &Path,
    check: impl Fn(&[u8], &Limits) -> Result<(), MediaError>,
) -> Result<Vec<u8>, CliError> {
    let limits = Limits::default();
    let failed = |source| CliError::File {
        flag,
        path: path.to_owned(),
        source,
    };
    let mut bytes = Vec::new();
    let most = limits.bytes + 1;
    let read = if path == Path::new(STDIN) {
        std::io::stdin().take(most).read_to_end(&mut bytes)
    } else {
        let file = std::fs::File::open(path);
        file.and_then(|file| file.take(most).read_to_end(&mut bytes))
    };
    read.map_err(failed)?;
    check(&bytes, &limits).map_err(|error| CliError::Field {
        flag,
        what: format!("{}: {error}", path.display()),
    })?;
    Ok(bytes)
}

/// Writes a file atomically. Overwrites an existing file only with `replace`.
pub fn write_whole(path: &Path, text: &str, replace: bool) -> std::io::Result<()> {
    let named = |directory: &&Path| !directory.as_os_str().is_empty();
    let directory = path.parent().filter(named).unwrap_or_else(|| ".".as_ref());
    let mut builder = tempfile::Builder::new();
    // The default of other programs; the umask applies.
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    let mut file = builder.tempfile_in(directory)?;
    file.write_all(text.as_bytes())?;
    file.as_file().sync_all()?;
    if replace {
        file.persist(path)?
    } else {
        file.persist_noclobber(path)?
    };
    Ok(())
}

/// Writes a file atomically, whether it exists or not. A device or a pipe is written to.
pub fn overwrite(path: &Path, text: &str) -> Result<(), CliError> {
    let written = match std::fs::metadata(path) {
        Ok(found) if !found.is_file() => std::fs::write(path, text),
        // The file that a link names, not the link.
        Ok(_) => path
            .canonicalize()
            .and_then(|path| write_whole(&path, text, true)),
        Err(_) => write_whole(path, text, true),
    };
    written.map_err(|source| CliError::Write {
        path: path.to_owned(),
        source,
    })
}

/// The messages of a file, in OpenAI's format.
pub fn messages(flag: &'static str, path: &Path) -> Result<Vec<Message>, CliError> {
    loquat_server::read_messages(json(flag, path)?).map_err(|error| invalid(flag, error))
}

/// The tools of a file, in OpenAI's format.
pub fn tools(flag: &'static str, path: &Path) -> Result<Vec<Tool>, CliError> {
    loquat_server::read_tools(json(flag, path)?).map_err(|error| invalid(flag, error))
}

fn invalid(flag: &'static str, error: ConversationFileError) -> CliError {
    CliError::Field {
        flag,
        what: error.to_string(),
    }
}

pub fn json(flag: &'static str, path: &Path) -> Result<Value, CliError> {
    let origin = path.display().to_string();
    parse(flag, &origin, &text(flag, path)?)
}

/// Parses JSON. `origin` names the source in errors.
pub fn parse(flag: &'static str, origin: &str, text: &str) -> Result<Value, CliError> {
    serde_json::from_str(text).map_err(|source| CliError::Json {
        flag,
        origin: origin.to_owned(),
        source,
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn overwriting_replaces_the_whole_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        overwrite(&path("a"), "old").unwrap();
        // Shows writes into the file, but not its replacement.
        fs::hard_link(path("a"), path("reader")).unwrap();
        overwrite(&path("a"), "new").unwrap();
        let read = |name: &str| fs::read_to_string(path(name)).unwrap();
        assert_eq!(
            (read("a").as_str(), read("reader").as_str()),
            ("new", "old")
        );
        assert!(overwrite(&path("missing/a"), "new").is_err());
        assert!(overwrite(folder.path(), "new").is_err());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
    }

    #[cfg(unix)]
    #[test]
    fn overwriting_follows_links_and_keeps_devices() {
        let folder = tempfile::tempdir().unwrap();
        let (file, link) = (folder.path().join("file"), folder.path().join("link"));
        fs::write(&file, "old").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        overwrite(&link, "new").unwrap();
        assert!(link.is_symlink());
        assert_eq!(fs::read_to_string(&file).unwrap(), "new");
        fs::remove_file(&link).unwrap();
        std::os::unix::fs::symlink("/dev/null", &link).unwrap();
        overwrite(&link, "new").unwrap();
        assert!(link.is_symlink() && !Path::new("/dev/null").is_file());
    }
}
