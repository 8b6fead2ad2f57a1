//! Paths that are not valid UTF-8.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::support::{Outcome, command, golden};

/// Folders and files whose names are Latin-1.
struct OddPaths {
    folder: TempDir,
    /// A copy of a tiny model.
    model: PathBuf,
}

impl OddPaths {
    fn new() -> Self {
        let folder = TempDir::new().unwrap();
        let model = folder.path().join(OsStr::from_bytes(b"mod\xe8le"));
        fs::create_dir(&model).unwrap();
        for file in fs::read_dir(golden("llama")).unwrap() {
            let file = file.unwrap();
            fs::copy(file.path(), model.join(file.file_name())).unwrap();
        }
        Self { folder, model }
    }

    fn path(&self, name: &[u8]) -> PathBuf {
        self.folder.path().join(OsStr::from_bytes(name))
    }

    fn loquat(&self, args: &[&OsStr]) -> Outcome {
        let cache = self.path(b"cach\xe9");
        command(&cache).args(args).output().unwrap().into()
    }

    fn greedy(&self, model: &Path) -> String {
        let flags = ["--max-tokens=6", "--temperature=0"].map(OsStr::new);
        let args = [
            OsStr::new("generate"),
            model.as_os_str(),
            OsStr::new("Hello"),
        ];
        self.loquat(&[&args[..], &flags].concat()).quiet()
    }
}

#[test]
fn models_of_any_path_open() {
    let odd = OddPaths::new();
    let expected = odd.greedy(Path::new(&golden("llama")));
    assert_eq!(odd.greedy(&odd.model), expected);
    assert_eq!(odd.greedy(&odd.model.join("model.safetensors")), expected);
    // Commands that print the path, and its form for configuration files.
    let model = odd.model.as_os_str();
    for command in ["inspect", "show"] {
        for flag in [&[][..], &[OsStr::new("--json")]] {
            let args = [&[OsStr::new(command), model][..], flag].concat();
            let shown = odd.loquat(&args).quiet();
            assert!(shown.contains("safetensors"), "{command}: {shown}");
        }
    }
    let url = format!("file://{}/mod%E8le", odd.folder.path().display());
    assert_eq!(odd.greedy(Path::new(&url)), expected);
    let missing = odd.path(b"rat\xe9");
    let refused = odd.loquat(&[OsStr::new("inspect"), missing.as_os_str()]);
    refused.refused(3, &["rat\u{fffd}"]);
}

#[test]
fn files_of_any_path_are_read_and_written() {
    let odd = OddPaths::new();
    let expected = odd.greedy(&odd.model);
    let messages = odd.path(b"pri\xe8re.json");
    fs::write(&messages, r#"[{"role":"user","content":"Hello"}]"#).unwrap();
    let flag = OsStr::new("--messages");
    let rendered = odd.loquat(&[
        OsStr::new("render"),
        odd.model.as_os_str(),
        flag,
        messages.as_os_str(),
    ]);
    assert!(rendered.quiet().contains("Hello"));

    let out = odd.path(b"r\xe9sultat.gguf");
    let convert = ["convert", "--to=gguf", "--quant=bf16", "--json", "-o"].map(OsStr::new);
    let args = [&convert[..], &[out.as_os_str(), odd.model.as_os_str()]].concat();
    odd.loquat(&args).quiet();
    assert_eq!(odd.greedy(&out), expected);
    let by_flag = [
        "generate",
        "--max-tokens=6",
        "--temperature=0",
        "--gguf-file",
    ]
    .map(OsStr::new);
    let args = [&by_flag[..], &[out.as_os_str(), OsStr::new("Hello")]].concat();
    assert_eq!(odd.loquat(&args).quiet(), expected);
}

#[test]
fn configurations_of_any_path_are_checked() {
    let odd = OddPaths::new();
    let source = format!("file://{}/mod%E8le", odd.folder.path().display());
    let config = odd.path(b"r\xe9glages.toml");
    fs::write(
        &config,
        format!("[[models]]\nname = \"tiny\"\nsource = {source:?}\n"),
    )
    .unwrap();
    let check = ["config", "check"].map(OsStr::new);
    let args = [&check[..], &[config.as_os_str()]].concat();
    assert!(odd.loquat(&args).quiet().contains("models tiny"));
    // Named on the command line, with and without a name for clients.
    for (prefix, name) in [("", "mod\u{fffd}le"), ("tiny=", "tiny")] {
        let mut model = OsString::from(prefix);
        model.push(&odd.model);
        let shown = odd.loquat(&[OsStr::new("config"), OsStr::new("show"), &model]);
        let shown = shown.quiet();
        let expected = format!("name = \"{name}\"");
        assert!(shown.contains(&expected), "{shown}");
        assert!(shown.contains(&source), "{shown}");
    }
}

#[test]
fn flags_and_variables_take_any_path() {
    let odd = OddPaths::new();
    let template = odd.path(b"mod\xe8le.jinja");
    fs::write(&template, "{{ nothing ").unwrap();
    let refusal = "mod\u{fffd}le.jinja";
    let serve = ["serve", "--port=0", "--template"].map(OsStr::new);
    let by_flag = [&serve[..], &[template.as_os_str(), odd.model.as_os_str()]].concat();
    odd.loquat(&by_flag).refused(2, &["template", refusal]);
    let mut command = command(&odd.path(b"cache"));
    command.args([OsStr::new("serve"), OsStr::new("--port=0")]);
    command.arg(&odd.model);
    command.env("LOQUAT_TEMPLATE", &template);
    Outcome::from(command.output().unwrap()).refused(2, &["template", refusal]);
    // What is not a path must be text.
    let port = [
        OsStr::new("serve"),
        OsStr::new("--port"),
        OsStr::from_bytes(b"\xe8"),
    ];
    odd.loquat(&port)
        .refused(2, &["--port: `server.port` must be"]);
}
