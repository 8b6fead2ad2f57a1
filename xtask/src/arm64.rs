//! Builds for ARM64 Linux and runs the result under emulation, on an x86-64 Debian machine.
//!
//! A Rust toolchain has the standard library of its own target only. Debian packages that library
//! for ARM64, for the compiler of its unstable release, so both are installed into a folder and
//! used from there.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use crate::command::{Cmd, program};
use crate::error::Error;
use crate::tools::require_arm64_emulation;

/// Debian's system, relative to the repository's root.
const SYSTEM: &str = "target/arm64";
/// Written to the system when it is complete; holds the packages.
const INSTALLED: &str = "installed.txt";
const EMULATOR: &str = "/usr/bin/qemu-aarch64-static";

const PACKAGES: &str = "rustc,cargo,gcc,g++,libc6-dev,gcc-aarch64-linux-gnu,g++-aarch64-linux-gnu,\
                        libc6-dev-arm64-cross,ca-certificates";
const ARM64_PACKAGES: [&str; 2] = ["libstd-rust-dev:arm64", "libc6-dev:arm64"];

/// The NEON kernels, whose tests compare them with the portable ones. Emulated, they take minutes.
const DEFAULT: [&str; 3] = ["test", "--package", "loquat-cpu-kernels"];

/// Mounts the repository and cargo's home in a mount namespace of its own, which ends with cargo.
const ENTER: &str = r#"
system=$1 repository=$2 cargo_home=$3
shift 3
mkdir -p "$system/loquat" "$system/cargo"
mount --bind "$repository" "$system/loquat"
mount --bind "$cargo_home" "$system/cargo"
mount -t proc proc "$system/proc"
mount --rbind /dev "$system/dev"
exec chroot "$system" env -i PATH=/usr/bin:/bin HOME=/root CARGO_HOME=/cargo \
    CARGO_TARGET_DIR=/target \
    CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc \
    CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER=qemu-aarch64-static \
    CC_aarch64_unknown_linux_gnu=aarch64-linux-gnu-gcc \
    sh -c 'cd /loquat && exec cargo "$@"' cargo "$@"
"#;

/// Runs `cargo` with `args` for ARM64.
pub fn run(root: &Path, args: &[String]) -> Result<(), Error> {
    require_arm64_emulation(root)?;
    let system = install(root)?;
    let home = cargo_home()?;
    let paths = [system.as_os_str(), root.as_os_str(), home.as_os_str()];
    let mut enter: Vec<OsString> = ["--mount", "sh", "-ec", ENTER, "arm64"]
        .map(Into::into)
        .into();
    enter.extend(paths.map(Into::into));
    let args: Vec<&str> = match args {
        [] => DEFAULT.to_vec(),
        args => args.iter().map(String::as_str).collect(),
    };
    println!("$ cargo {} (for ARM64, emulated)", args.join(" "));
    let (command, rest) = args.split_first().unwrap_or((&"test", &[]));
    enter.push(command.into());
    enter.extend(["--target", "aarch64-unknown-linux-gnu"].map(Into::into));
    enter.extend(rest.iter().map(Into::into));
    program(root, "unshare", &enter).run_quiet()
}

/// The folder with Debian's system, made on first use.
fn install(root: &Path) -> Result<PathBuf, Error> {
    let system = root.join(SYSTEM);
    let packages = format!("{PACKAGES},{}", ARM64_PACKAGES.join(","));
    let installed = system.join(INSTALLED);
    if fs::read_to_string(&installed).is_ok_and(|found| found == packages) {
        return Ok(system);
    }
    println!("installing Debian's compiler and its ARM64 libraries into {SYSTEM}");
    let io = |path: &Path| {
        let path = path.to_owned();
        move |source| Error::Io { path, source }
    };
    if system.exists() {
        fs::remove_dir_all(&system).map_err(io(&system))?;
    }
    let path = system.to_string_lossy();
    let include = format!("--include={PACKAGES}");
    program(
        root,
        "debootstrap",
        &["--variant=minbase", &include, "unstable", &path],
    )
    .run()?;
    let inside = |args: &[&str]| -> Cmd {
        program(root, "chroot", &[&[&*path], args].concat())
            .env("DEBIAN_FRONTEND", "noninteractive")
    };
    inside(&["dpkg", "--add-architecture", "arm64"]).run()?;
    // A mirror that is some weeks behind says that its lists have expired.
    let update = [
        "-o",
        "Acquire::Check-Valid-Until=false",
        "update",
        "--quiet",
    ];
    inside(&[&["apt-get"], &update[..]].concat()).run()?;
    let install = ["apt-get", "install", "--yes", "--no-install-recommends"];
    inside(&[&install[..], &ARM64_PACKAGES].concat()).run()?;
    let emulator = system.join(EMULATOR.trim_start_matches('/'));
    fs::copy(EMULATOR, &emulator).map_err(io(&emulator))?;
    fs::write(&installed, packages).map_err(io(&installed))?;
    Ok(system)
}

/// Where cargo keeps what it has downloaded.
fn cargo_home() -> Result<PathBuf, Error> {
    let named = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let default = std::env::home_dir().map(|home| home.join(".cargo"));
    named.or(default).ok_or_else(|| Error::Missing {
        what: "cargo's home directory".to_owned(),
        remedy: "set CARGO_HOME".to_owned(),
    })
}
