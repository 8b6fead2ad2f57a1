//! Finds and loads the shim, and MLX through it. Nothing here ends the process: a library that is
//! missing, truncated or of another version is an error.

use std::env;
use std::error::Error;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use libloading::Library;

use crate::error::LoadError;
use crate::ffi::{ABI, Api};

/// Paths of the shim and of the MLX library it was built against.
const BUILT: Option<(&str, &str)> = match (
    option_env!("LOQUAT_MLX_SHIM"),
    option_env!("LOQUAT_MLX_LIBRARY"),
) {
    (Some(shim), Some(library)) => Some((shim, library)),
    _ => None,
};

const NOT_BUILT: &str = match option_env!("LOQUAT_MLX_NOT_BUILT") {
    Some(why) => why,
    None => "the build gave no reason",
};

/// Loaded at the first call and kept for the life of the process: arrays on other threads may
/// refer to it.
pub fn api() -> Result<&'static Api, LoadError> {
    static LOADED: OnceLock<Result<&'static Api, LoadError>> = OnceLock::new();
    LOADED.get_or_init(|| load(&find()?)).clone()
}

/// The shim next to the program, as in a release, or in the build directory.
fn find() -> Result<PathBuf, LoadError> {
    let program = env::current_exe().ok();
    if let Some(folder) = program.as_deref().and_then(Path::parent) {
        let candidates = [folder.to_owned(), folder.join("../lib")];
        let candidates = candidates.map(|folder| folder.join(file_name("loquat_mlx")));
        if let Some(found) = candidates.into_iter().find(|path| path.is_file()) {
            return Ok(found);
        }
    }
    match BUILT {
        Some((shim, _)) => Ok(PathBuf::from(shim)),
        None => Err(LoadError::NotBuilt { why: NOT_BUILT }),
    }
}

fn file_name(library: &str) -> String {
    format!(
        "{}{library}{}",
        env::consts::DLL_PREFIX,
        env::consts::DLL_SUFFIX
    )
}

/// Loads the shim at `path`, and MLX with it.
pub fn load(path: &Path) -> Result<&'static Api, LoadError> {
    check_complete(path)?;
    // The loader searches next to the shim first.
    let mlx = path.with_file_name(file_name("mlx"));
    if mlx.is_file() {
        check_complete(&mlx)?;
    } else if let Some((_, built)) = BUILT
        && Path::new(built).is_file()
    {
        check_complete(Path::new(built))?;
    }
    let refused = |error: libloading::Error| LoadError::Refused {
        path: path.to_owned(),
        // The source has the reason; the error itself only names the failed call.
        why: match error.source() {
            Some(reason) => reason.to_string(),
            None => error.to_string(),
        },
    };
    // SAFETY: MLX's initialisers have no requirements. The shim's own sets one environment variable
    // if it is unset, once per process; no other thread may change the environment meanwhile, and
    // Loquat has none that does.
    let library = unsafe { open(path) }.map_err(refused)?;
    // SAFETY: the shim has had this function, of this signature, from its first version on.
    let abi = unsafe {
        let abi: libloading::Symbol<unsafe extern "C" fn() -> u64> =
            library.get(b"lq_abi\0").map_err(refused)?;
        abi()
    };
    if abi != ABI {
        return Err(LoadError::Foreign {
            path: path.to_owned(),
        });
    }
    // SAFETY: a shim of this number has these signatures.
    let api = unsafe { Api::resolve(library) }.map_err(refused)?;
    Ok(Box::leak(Box::new(api)))
}

/// # Safety
/// As for [`Library::new`].
#[cfg(unix)]
unsafe fn open(path: &Path) -> Result<Library, libloading::Error> {
    use libloading::os::unix;
    // All symbols at once, so that a library of another version is refused here and not at the
    // first call of what it lacks.
    // SAFETY: as the caller promises.
    unsafe { unix::Library::open(Some(path), unix::RTLD_NOW | unix::RTLD_LOCAL) }.map(Library::from)
}

/// # Safety
/// As for [`Library::new`].
#[cfg(not(unix))]
unsafe fn open(path: &Path) -> Result<Library, libloading::Error> {
    // SAFETY: as the caller promises.
    unsafe { Library::new(path) }
}

/// Refuses a file that the system's loader would map past its end: touching the missing part
/// raises a signal.
fn check_complete(path: &Path) -> Result<(), LoadError> {
    let missing = |_| LoadError::Missing {
        path: path.to_owned(),
    };
    let mut file = File::open(path).map_err(missing)?;
    let len = file.metadata().map_err(missing)?.len();
    let damaged = |why: String| LoadError::Damaged {
        path: path.to_owned(),
        why,
    };
    let mut header = [0; 64];
    if file.read_exact(&mut header).is_err() {
        return Err(damaged(format!("it has only {len} bytes")));
    }
    if cfg!(target_os = "linux") {
        let end = elf_end(&mut file, &header)
            .ok_or_else(|| damaged("it is not a shared library of this system".to_owned()))?;
        if end > len {
            return Err(damaged(format!("{len} bytes of {end} are there")));
        }
    }
    Ok(())
}

/// The end of an ELF file's last mapped segment or section table; `None` for other files.
fn elf_end(file: &mut File, header: &[u8; 64]) -> Option<u64> {
    const MAGIC: &[u8] = b"\x7fELF\x02\x01";
    const ENTRY: usize = 56;
    const LOAD: u32 = 1;
    let u64_at = |bytes: &[u8], at: usize| {
        let eight = bytes.get(at..at + 8)?;
        Some(u64::from_le_bytes(eight.try_into().ok()?))
    };
    let u16_at = |at: usize| u16::from_le_bytes([header[at], header[at + 1]]);
    if !header.starts_with(MAGIC) || usize::from(u16_at(54)) != ENTRY {
        return None;
    }
    file.seek(SeekFrom::Start(u64_at(header, 32)?)).ok()?;
    let mut table = vec![0; usize::from(u16_at(56)) * ENTRY];
    file.read_exact(&mut table).ok()?;
    let sections = u64::from(u16_at(58)) * u64::from(u16_at(60));
    let mut end = u64_at(header, 40)?.checked_add(sections)?;
    for entry in table.chunks_exact(ENTRY) {
        let kind = u32::from_le_bytes(entry[..4].try_into().ok()?);
        if kind == LOAD {
            let (at, len) = (u64_at(entry, 8)?, u64_at(entry, 32)?);
            end = end.max(at.checked_add(len)?);
        }
    }
    Some(end)
}
