//! Compiles each file of kernels with nvcc.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::architectures::{Target, file_targets};

pub struct Build {
    pub nvcc: PathBuf,
    pub targets: Vec<Target>,
    /// Its files are compiled; its subfolders have headers and tests.
    pub folder: PathBuf,
    pub out: PathBuf,
    /// Whether profilers see source lines.
    pub has_line_info: bool,
    /// nvcc processes and threads at once.
    pub jobs: usize,
}

/// A compiled file.
pub struct Module {
    name: String,
    targets: Vec<Target>,
    fatbin: PathBuf,
    /// What ptxas reported of every kernel.
    report: PathBuf,
}

impl Build {
    /// Compiles every file that has a target.
    pub fn run(&self) -> Result<Vec<Module>, String> {
        let sources = files(&self.folder)?;
        let headers: String = sources
            .iter()
            .filter(|(path, _)| ends_with(path, "cuh"))
            .map(|(path, text)| format!("{}\n{text}", path.display()))
            .collect();
        let mut files = Vec::new();
        let is_compiled =
            |path: &Path| ends_with(path, "cu") && path.parent() == Some(self.folder.as_path());
        for (path, text) in sources.iter().filter(|(path, _)| is_compiled(path)) {
            let in_file = |why| format!("{}: {why}", path.display());
            let allowed = file_targets(text).map_err(in_file)?;
            let is_allowed = |target: &Target| match &allowed {
                Some(allowed) => allowed.contains(target),
                None => true,
            };
            let targets: Vec<Target> = self.targets.iter().copied().filter(is_allowed).collect();
            let name = path
                .file_stem()
                .map(|name| name.to_string_lossy().into_owned());
            if !targets.is_empty() {
                files.push((self.module(name.unwrap_or_default(), targets), path, text));
            }
        }
        // Large files first, so that the last ones to finish are small.
        let mut order: Vec<usize> = (0..files.len()).collect();
        order.sort_by_key(|&index| std::cmp::Reverse(files[index].2.len()));
        let next = AtomicUsize::new(0);
        let failures = Mutex::new(BTreeMap::new());
        let processes = self.jobs.clamp(1, files.len().max(1));
        std::thread::scope(|scope| {
            for _ in 0..processes {
                scope.spawn(|| {
                    while let Some(&index) = order.get(next.fetch_add(1, Ordering::Relaxed)) {
                        let (module, path, text) = &files[index];
                        let threads = self.jobs.div_ceil(processes);
                        let result =
                            self.compile(module, path, &format!("{headers}{text}"), threads);
                        if let (Err(why), Ok(mut failures)) = (result, failures.lock()) {
                            failures.insert(index, why);
                        }
                    }
                });
            }
        });
        let failures = failures.into_inner().map_err(|error| error.to_string())?;
        if failures.is_empty() {
            Ok(files.into_iter().map(|(module, ..)| module).collect())
        } else {
            Err(failures.into_values().collect::<Vec<_>>().join("\n"))
        }
    }

    fn module(&self, name: String, targets: Vec<Target>) -> Module {
        Module {
            fatbin: self.out.join(format!("{name}.fatbin")),
            report: self.out.join(format!("{name}.ptxas")),
            name,
            targets,
        }
    }

    /// Compiles a file unless its last result is of the same sources and arguments.
    fn compile(
        &self,
        module: &Module,
        path: &Path,
        sources: &str,
        threads: usize,
    ) -> Result<(), String> {
        let args = self.args(module, path);
        let key = format!(
            "{} {}\n{:016x}\n",
            self.nvcc.display(),
            args.join(" "),
            hash(sources)
        );
        let stored = module.fatbin.with_extension("key");
        let is_current = fs::read_to_string(&stored).is_ok_and(|stored| stored == key);
        if is_current && module.fatbin.is_file() && module.report.is_file() {
            return Ok(());
        }
        let _ = fs::remove_file(&stored);
        let output = Command::new(&self.nvcc)
            .args(&args)
            .arg(format!("--threads={threads}"))
            .output()
            .map_err(|error| format!("{} cannot be started: {error}", self.nvcc.display()))?;
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        if !output.status.success() {
            let text = format!("{}{text}", String::from_utf8_lossy(&output.stdout));
            return Err(format!("{}:\n{text}", path.display()));
        }
        let write = |path: &Path, text: &str| {
            fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))
        };
        // ptxas lists spills and registers; anything else is a warning of the compiler.
        for line in text.lines().filter(|line| line.contains("warning")) {
            println!("cargo::warning={}: {line}", module.name);
        }
        write(&module.report, &text)?;
        write(&stored, &key)
    }

    fn args(&self, module: &Module, path: &Path) -> Vec<String> {
        let mut args: Vec<String> = [
            "--fatbin",
            "-std=c++17",
            "-O3",
            "--expt-relaxed-constexpr",
            "-Xptxas=-v",
        ]
        .map(str::to_owned)
        .to_vec();
        if self.has_line_info {
            args.push("-lineinfo".to_owned());
        }
        for target in &module.targets {
            args.extend(["-gencode".to_owned(), target.gencode()]);
        }
        args.push("-I".to_owned());
        for path in [&self.folder, Path::new("-o"), &module.fatbin, path] {
            args.push(path.display().to_string());
        }
        args
    }
}

/// The files of a folder and its subfolders, with their text, in a fixed order.
fn files(folder: &Path) -> Result<Vec<(PathBuf, String)>, String> {
    let io_error = |error| format!("{}: {error}", folder.display());
    let mut found = Vec::new();
    let mut entries: Vec<PathBuf> = fs::read_dir(folder)
        .map_err(io_error)?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .collect();
    entries.sort();
    for path in entries {
        if path.is_dir() {
            found.extend(files(&path)?);
        } else if ends_with(&path, "cu") || ends_with(&path, "cuh") {
            let text = fs::read_to_string(&path)
                .map_err(|error| format!("{}: {error}", path.display()))?;
            found.push((path, text));
        }
    }
    Ok(found)
}

fn ends_with(path: &Path, extension: &str) -> bool {
    path.extension().is_some_and(|found| found == extension)
}

/// FNV-1a.
fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    })
}

/// The Rust source of the tables that `src/kernels.rs` includes.
pub fn generate(modules: &[Module], not_built: Option<&str>) -> String {
    let mut text = format!("const NOT_BUILT: Option<&str> = {not_built:?};\n");
    let (mut images, mut reports) = (String::new(), String::new());
    for Module {
        name,
        targets,
        fatbin,
        report,
    } in modules
    {
        let targets: Vec<String> = targets.iter().map(Target::to_string).collect();
        let targets = targets.join(",");
        let _ = writeln!(
            images,
            "    Image {{ file: {name:?}, targets: {targets:?}, \
             fatbin: include_bytes!({fatbin:?}) }},"
        );
        let _ = writeln!(
            reports,
            "    Report {{ file: {name:?}, targets: {targets:?}, \
             ptxas: include_str!({report:?}) }},"
        );
    }
    let _ = write!(
        text,
        "static IMAGES: &[Image] = &[\n{images}];\n\
         #[cfg(test)]\nstatic REPORTS: &[Report] = &[\n{reports}];\n"
    );
    text
}
