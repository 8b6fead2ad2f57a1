//! Builds the shim if MLX is found, as a shared library that is loaded at run time. The crate
//! itself builds without MLX.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

const SHIM: &str = "shim/shim.cpp";
/// Both sides of the interface: a shim works with a program only if all of these are equal.
const INTERFACE: [&str; 4] = [SHIM, "shim/shim.h", "src/ffi.rs", "src/array.rs"];
const REMEDY: &str = "run `cargo xtask mlx` to download it, or set MLX_ROOT to the folder that has \
                      `include/mlx` and `lib`, and build with `--features mlx`";

fn main() {
    for variable in ["MLX_ROOT", "XDG_CACHE_HOME", "HOME"] {
        println!("cargo::rerun-if-env-changed={variable}");
    }
    INTERFACE
        .iter()
        .for_each(|file| println!("cargo::rerun-if-changed={file}"));
    let abi = format!("{:016x}", interface());
    println!("cargo::rustc-env=LOQUAT_MLX_ABI={abi}");
    match build(&abi) {
        Ok((shim, library)) => {
            println!("cargo::rustc-env=LOQUAT_MLX_SHIM={}", shim.display());
            println!("cargo::rustc-env=LOQUAT_MLX_LIBRARY={}", library.display());
        }
        Err(why) => println!("cargo::rustc-env=LOQUAT_MLX_NOT_BUILT={why}"),
    }
}

/// The shim and the library it was linked against, or why there is none.
fn build(abi: &str) -> Result<(PathBuf, PathBuf), String> {
    let os = env::var("CARGO_CFG_TARGET_OS").unwrap_or_default();
    if env::var_os("CARGO_FEATURE_MLX").is_none() && os != "macos" {
        return Err("it was built without the feature `mlx`".to_owned());
    }
    let Some(root) = find(&os) else {
        println!("cargo::warning=MLX was not found, so its backend will be unavailable: {REMEDY}");
        return Err("MLX was not found when it was built".to_owned());
    };
    let library = root.join("lib").join(file_name("mlx", &os));
    for file in [&library, &root.join("include/mlx/version.h")] {
        println!("cargo::rerun-if-changed={}", file.display());
    }
    match compile(&root, &os, abi) {
        Ok(shim) => Ok((shim, library)),
        // If MLX was found but cannot be used, the build fails instead of hiding the mistake.
        Err(why) => panic!(
            "the MLX shim does not build against {}: {why}",
            root.display()
        ),
    }
}

/// A hash of the interface's files (FNV-1a).
fn interface() -> u64 {
    let files = INTERFACE.map(|file| std::fs::read(file).unwrap_or_default());
    let bytes = files.iter().flatten();
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
    })
}

fn file_name(library: &str, os: &str) -> String {
    let ending = if os == "macos" { "dylib" } else { "so" };
    format!("lib{library}.{ending}")
}

/// The folder that has MLX's `include` and `lib`.
fn find(os: &str) -> Option<PathBuf> {
    let complete = |root: &PathBuf| {
        root.join("include/mlx/mlx.h").is_file()
            && root.join("lib").join(file_name("mlx", os)).is_file()
    };
    if let Some(root) = env::var_os("MLX_ROOT").filter(|root| !root.is_empty()) {
        let root = PathBuf::from(root);
        assert!(
            complete(&root),
            "MLX_ROOT is {}, which has no `include/mlx/mlx.h` or no `lib/{}`",
            root.display(),
            file_name("mlx", os)
        );
        return Some(root);
    }
    let installed = ["/opt/homebrew/opt/mlx", "/usr/local", "/usr"].map(PathBuf::from);
    let candidates = installed
        .into_iter()
        .chain(python_package())
        .chain(fetched());
    candidates.into_iter().find(complete)
}

/// The folder of the installed Python package, if any.
fn python_package() -> Option<PathBuf> {
    let code =
        "import importlib.util as u; print(u.find_spec('mlx').submodule_search_locations[0])";
    let output = Command::new("python3").args(["-c", code]).output().ok()?;
    let path = String::from_utf8(output.stdout).ok()?;
    (output.status.success() && !path.trim().is_empty()).then(|| PathBuf::from(path.trim()))
}

/// The MLX that `cargo xtask mlx` downloaded last.
fn fetched() -> Option<PathBuf> {
    let set = |name| env::var_os(name).filter(|value| !value.is_empty());
    let cache = set("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| set("HOME").map(|home| Path::new(&home).join(".cache")))?;
    let wheels = cache.join("loquat/mlx");
    let chosen = wheels.join("chosen");
    println!("cargo::rerun-if-changed={}", chosen.display());
    let folder = std::fs::read_to_string(chosen).ok()?;
    Some(wheels.join(folder.trim()).join("mlx"))
}

fn compile(root: &Path, os: &str, abi: &str) -> Result<PathBuf, String> {
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("OUT_DIR is not set")?);
    let shim = out.join(file_name("loquat_mlx", os));
    let compiler = cc::Build::new()
        .cpp(true)
        .std("c++20")
        .opt_level(2)
        .warnings(false)
        .pic(true)
        .cargo_metadata(false)
        .include(root.join("include"))
        .try_get_compiler()
        .map_err(|error| error.to_string())?;
    // The folder of the shim first, where a release has the library.
    let (shared, origin) = match os {
        "macos" => ("-dynamiclib", "@loader_path"),
        _ => ("-shared", "$ORIGIN"),
    };
    let lib = root.join("lib");
    let mut command = compiler.to_command();
    command.arg(format!("-DLQ_ABI=0x{abi}ull"));
    command.arg(shared).arg(SHIM).arg("-o").arg(&shim);
    command.arg("-L").arg(&lib).arg("-lmlx");
    command.arg(format!("-Wl,-rpath,{origin}"));
    command.arg(format!("-Wl,-rpath,{}", lib.display()));
    if os == "linux" {
        // The older kind of path counts for what MLX itself needs too, so that all of a release
        // can stand in one folder.
        command.arg("-Wl,--disable-new-dtags");
    }
    let output = command.output().map_err(|error| error.to_string())?;
    if output.status.success() {
        Ok(shim)
    } else {
        Err(String::from_utf8_lossy(&output.stderr).into_owned())
    }
}
