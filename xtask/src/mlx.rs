//! Downloads MLX: the library and headers of a Python wheel, unpacked once into the cache. The MLX
//! backend's build script looks there last.

use std::env::consts::{ARCH, OS};
use std::fs;
use std::path::{Path, PathBuf};

use crate::error::Error;
use crate::wheel::{Platform, Wheel, Wheels};

const VERSION: &str = "0.32.4";

/// The file in the cache that names the folder builds use.
const CHOSEN: &str = "chosen";

/// A build of MLX for one kind of device.
struct Variant {
    name: &'static str,
    package: &'static str,
    platforms: &'static [Platform],
    /// Libraries it links that its wheel does not contain.
    linked_libraries: &'static [&'static str],
}

/// The hashes are those of the package index.
const VARIANTS: &[Variant] = &[
    Variant {
        name: "cpu",
        package: "mlx-cpu",
        platforms: &[
            Platform {
                os: "linux",
                arch: "x86_64",
                tag: "manylinux_2_35_x86_64",
                sha256: "0e0a24fa2ce8b6b94d2e6a90604e8813aa8e29fcb918bb2aa01cfb6d133d8cee",
            },
            Platform {
                os: "linux",
                arch: "aarch64",
                tag: "manylinux_2_35_aarch64",
                sha256: "1289e85e64af1fd16380bf331438bfe4afe875d27afc3e0bcf35f427c488fadd",
            },
        ],
        linked_libraries: &[],
    },
    Variant {
        name: "cuda13",
        package: "mlx-cuda-13",
        platforms: &[
            Platform {
                os: "linux",
                arch: "x86_64",
                tag: "manylinux_2_35_x86_64",
                sha256: "94cb48fba73e5ee39467e51c35c51c691123359ca17bafd1a24cf92ad6732bee",
            },
            Platform {
                os: "linux",
                arch: "aarch64",
                tag: "manylinux_2_35_aarch64",
                sha256: "cf8a67b49cebff85cd98b1d118c09f6c8ee966b899a914c50cc74d614b25616e",
            },
        ],
        linked_libraries: &[
            "libcublasLt.so.13",
            "libcudnn.so.9",
            "libcufft.so.12",
            "libcusolver.so.12",
            "libnccl.so.2",
            "libnvrtc.so.13",
            "libcuda.so.1 (the driver's)",
        ],
    },
    Variant {
        name: "metal",
        package: "mlx-metal",
        // Oldest first: it runs on every version.
        platforms: &[
            Platform {
                os: "macos",
                arch: "aarch64",
                tag: "macosx_14_0_arm64",
                sha256: "8019b2db622599267d66cc168b2f0dbf5af929790a6c3b3913e00eabc42a7947",
            },
            Platform {
                os: "macos",
                arch: "aarch64",
                tag: "macosx_15_0_arm64",
                sha256: "9f0a3cc26d89724434d9684932fc6f3e4e83669d2a895d858ed2c8a55eb84e8b",
            },
            Platform {
                os: "macos",
                arch: "aarch64",
                tag: "macosx_26_0_arm64",
                sha256: "514df92d41a286895d2564b4b18f4da45096bd7a4a0c47e1042f345ad5a7f936",
            },
        ],
        linked_libraries: &[],
    },
];

/// The variant that runs on every machine with this operating system.
pub const DEFAULT: &str = if cfg!(target_os = "macos") {
    "metal"
} else {
    "cpu"
};

/// Downloads the variant named in `args` and makes builds use it.
pub fn run(root: &Path, args: &[String]) -> Result<(), Error> {
    let variant = match args {
        [] => variant(DEFAULT)?,
        [name] => variant(name)?,
        [_, extra, ..] => {
            let message = format!("mlx takes one variant, got `{extra}` too");
            return Err(Error::Usage { message });
        }
    };
    let cache = cache()?;
    let folder = variant.fetch(root, &cache)?;
    if variant.supports(OS, ARCH) {
        write(&cache.join(CHOSEN), &variant.folder())?;
        println!("builds with the feature `mlx` use it unless MLX_ROOT is set or MLX is installed");
    } else {
        let root = folder.join("mlx");
        println!(
            "it does not run on this machine; to build for one it runs on, set MLX_ROOT to {root:?}"
        );
    }
    print!("{}", variant.linked_libraries_help(&folder)?);
    Ok(())
}

/// The MLX folder of the variant `name`, downloaded if needed. Does not change which variant
/// builds use.
pub fn find_or_download(root: &Path, name: &str) -> Result<PathBuf, Error> {
    let folder = variant(name)?.fetch(root, &cache()?)?;
    Ok(folder.join("mlx"))
}

fn variant(name: &str) -> Result<&'static Variant, Error> {
    let found = VARIANTS.iter().find(|variant| variant.name == name);
    found.ok_or_else(|| {
        let known: Vec<_> = VARIANTS.iter().map(|variant| variant.name).collect();
        let known = known.join(", ");
        let message = format!("mlx: unknown variant `{name}`; use one of: {known}");
        Error::Usage { message }
    })
}

impl Variant {
    fn folder(&self) -> String {
        format!("{}-{VERSION}", self.name)
    }

    fn supports(&self, os: &str, arch: &str) -> bool {
        !self.platforms_for(os, arch).is_empty()
    }

    fn platforms_for(&self, os: &str, arch: &str) -> Vec<&'static Platform> {
        let platforms = self.platforms.iter();
        let matching = platforms.filter(|platform| platform.os == os && platform.arch == arch);
        matching.collect()
    }

    fn wheel(&self) -> Wheel {
        Wheel {
            package: self.package,
            version: VERSION,
            platforms: self.platforms_for(OS, ARCH),
            fallback: self.platforms.first(),
        }
    }

    fn fetch(&self, root: &Path, cache: &Path) -> Result<PathBuf, Error> {
        let folder = cache.join(self.folder());
        let path = folder.display();
        let wheels = Wheels {
            wheels: &[self.wheel()],
            other_source: "or unpack the wheel yourself and set MLX_ROOT to its folder `mlx`",
        };
        if wheels.are_complete(&folder) {
            println!("{} {VERSION} is already in {path}", self.package);
            return Ok(folder);
        }
        wheels.fetch(root, &folder)?;
        println!("{} {VERSION} is in {path}", self.package);
        Ok(folder)
    }

    /// Explains how to get the libraries that the loader must find; empty if there are none.
    fn linked_libraries_help(&self, folder: &Path) -> Result<String, Error> {
        if self.linked_libraries.is_empty() {
            return Ok(String::new());
        }
        let packages: Vec<String> = self
            .wheel()
            .requirements(folder)?
            .iter()
            .map(|package| format!("{package:?}"))
            .collect();
        Ok(format!(
            "the library links these libraries, which the loader must find:\n  {}\n\
             if the system does not have them, install them next to it:\n  \
             python3 -m pip install --target {folder:?} {}\n",
            self.linked_libraries.join("\n  "),
            packages.join(" ")
        ))
    }
}

/// The folder where the MLX backend's build script looks too.
fn cache() -> Result<PathBuf, Error> {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    let named = set("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = named.or_else(|| set("HOME").map(|home| Path::new(&home).join(".cache")));
    let cache = cache.ok_or_else(|| Error::Missing {
        what: "a cache folder for MLX".to_string(),
        remedy: "set HOME or XDG_CACHE_HOME".to_string(),
    })?;
    Ok(cache.join("loquat/mlx"))
}

fn write(path: &Path, text: &str) -> Result<(), Error> {
    fs::write(path, text).map_err(|source| Error::Io {
        path: path.to_owned(),
        source,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variants_list_their_platforms() {
        for (name, os, arch, wheels) in [
            ("cpu", "linux", "x86_64", 1),
            ("cpu", "linux", "aarch64", 1),
            ("cpu", "macos", "aarch64", 0),
            ("cuda13", "linux", "x86_64", 1),
            ("metal", "macos", "aarch64", 3),
            ("metal", "macos", "x86_64", 0),
            ("metal", "linux", "aarch64", 0),
        ] {
            let found = variant(name).unwrap().platforms_for(os, arch).len();
            assert_eq!(found, wheels, "{name} on {os} {arch}");
        }
        assert!(variant(DEFAULT).is_ok());
    }

    #[test]
    fn hashes_are_valid_and_unique() {
        let platforms = VARIANTS.iter().flat_map(|variant| variant.platforms);
        let mut hashes: Vec<&str> = platforms.map(|platform| platform.sha256).collect();
        for hash in &hashes {
            assert_eq!(hash.len(), 64, "{hash}");
            assert!(
                hash.bytes().all(|digit| digit.is_ascii_hexdigit()),
                "{hash}"
            );
        }
        let count = hashes.len();
        hashes.sort_unstable();
        hashes.dedup();
        assert_eq!(hashes.len(), count);
    }

    #[test]
    fn unknown_variant_is_refused() {
        let root = Path::new(".");
        for (line, named) in [("opencl", "cpu, cuda13, metal"), ("cpu metal", "`metal`")] {
            let args: Vec<String> = line.split(' ').map(str::to_string).collect();
            let message = run(root, &args).unwrap_err().to_string();
            assert!(message.contains(named), "{line}: {message}");
        }
    }
}
