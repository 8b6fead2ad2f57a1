//! Which `mmproj` file next to a model is its vision tower.

use std::path::{Path, PathBuf};

/// Where the vision tower of a GGUF model comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MmprojChoice<'a> {
    /// A file next to the model, if there is one that belongs to it. If it cannot be used, the
    /// model reads text only, and its spec says why.
    #[default]
    Beside,
    /// The model reads text only.
    Off,
    At(&'a Path),
}

/// The choice for one model among files by their names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MmprojMatch {
    None,
    One(String),
    /// Several fit equally well.
    Several(Vec<String>),
}

/// Whether a file's name is that of a vision tower.
pub fn is_mmproj_name(path: &str) -> bool {
    let name = file_name(path).to_ascii_lowercase();
    name.ends_with(".gguf") && name.contains("mmproj")
}

/// The tower of the GGUF file `model` among `files`, all of one folder or repository. A tower that
/// has the model's name wins over those that have none; of several types, bf16, f16 and f32 win in
/// this order.
pub fn match_mmproj(model: &str, files: &[&str]) -> MmprojMatch {
    let model = stem(model);
    let is_gguf = |path: &&&str| path.to_ascii_lowercase().ends_with(".gguf");
    let ggufs = || files.iter().filter(is_gguf).copied();
    let towers: Vec<&str> = ggufs().filter(|path| is_mmproj_name(path)).collect();
    let models = || ggufs().filter(|path| !is_mmproj_name(path) && !path.contains("imatrix"));
    let named = |path: &&&str| {
        let name = tower_name(path);
        !is_generic(&name) && model.starts_with(&name)
    };
    let mut fitting: Vec<&str> = towers.iter().filter(named).copied().collect();
    if fitting.is_empty() {
        // A tower without a name belongs to every quantization of the folder's only model.
        let base = |stem: &str| {
            stem.rsplit_once(['-', '.'])
                .map(|(base, _)| base.to_owned())
        };
        let one_model = models().count() <= 1;
        if one_model || models().all(|path| base(&stem(path)) == base(&model)) {
            let unnamed = |path: &&str| one_model || is_generic(&tower_name(path));
            fitting = towers.into_iter().filter(unnamed).collect();
        }
    }
    let of_type = |dtype: &str| {
        let mut found = fitting.iter().filter(|path| dtype_of(path) == Some(dtype));
        found.next().filter(|_| found.next().is_none())
    };
    let usual = TYPES.iter().find_map(|dtype| of_type(dtype));
    match (fitting.as_slice(), usual) {
        ([], _) => MmprojMatch::None,
        ([only], _) => MmprojMatch::One((*only).to_owned()),
        (_, Some(usual)) => MmprojMatch::One((*usual).to_owned()),
        (several, None) => {
            MmprojMatch::Several(several.iter().map(|path| (*path).to_owned()).collect())
        }
    }
}

/// The tower next to a model's file.
pub(crate) fn mmproj_beside(model: &Path) -> std::io::Result<MmprojMatch> {
    let folder = folder_of(model);
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        if entry.path().is_file() {
            names.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    names.sort();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let model = model.file_name().unwrap_or_default().to_string_lossy();
    Ok(match_mmproj(&model, &names))
}

pub(crate) fn folder_of(model: &Path) -> PathBuf {
    let parent = model.parent().filter(|path| !path.as_os_str().is_empty());
    parent.unwrap_or(Path::new(".")).to_owned()
}

/// In order of preference.
const TYPES: [&str; 3] = ["bf16", "f16", "f32"];

fn dtype_of(path: &str) -> Option<&'static str> {
    let stem = stem(path);
    let mut words = stem.rsplit(['-', '.', '_']);
    words.find_map(|word| {
        let word = word
            .strip_prefix("fp")
            .map_or(word.to_owned(), |bits| format!("f{bits}"));
        TYPES.into_iter().find(|dtype| *dtype == word)
    })
}

fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

fn stem(path: &str) -> String {
    let name = file_name(path).to_ascii_lowercase();
    name.strip_suffix(".gguf").unwrap_or(&name).to_owned()
}

/// What a tower's name says besides `mmproj` and its type.
fn tower_name(path: &str) -> String {
    const SEPARATORS: [char; 3] = ['-', '.', '_'];
    let name = stem(path).replace("mmproj", "");
    let mut name = name.trim_matches(SEPARATORS);
    while let Some((rest, word)) = name.rsplit_once(SEPARATORS) {
        let is_type = word.len() <= 4 && word.ends_with(|end: char| end.is_ascii_digit());
        if !is_type || !word.starts_with(['b', 'f', 'q', '0', '1', 'k']) {
            break;
        }
        name = rest.trim_matches(SEPARATORS);
    }
    name.to_owned()
}

fn is_generic(name: &str) -> bool {
    let dtype = TYPES.contains(&name) || ["fp16", "fp32", "q8_0"].contains(&name);
    dtype || ["", "model", "vision"].contains(&name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tower_is_chosen_by_name_and_type() {
        let one = |name: &str| MmprojMatch::One(name.to_owned());
        let table: [(&str, &[&str], MmprojMatch); 9] = [
            (
                "m-Q4_K_M.gguf",
                &["m-Q4_K_M.gguf", "notes.txt"],
                MmprojMatch::None,
            ),
            (
                "m.gguf",
                &["m.gguf", "mmproj-x-q8_0.gguf"],
                one("mmproj-x-q8_0.gguf"),
            ),
            (
                "m-Q8_0.gguf",
                &[
                    "m-Q8_0.gguf",
                    "m-Q4_0.gguf",
                    "mmproj-F32.gguf",
                    "mmproj-BF16.gguf",
                    "mmproj-F16.gguf",
                ],
                one("mmproj-BF16.gguf"),
            ),
            (
                "a-4b-it-Q4_0.gguf",
                &[
                    "a-4b-it-Q4_0.gguf",
                    "b-Q4_0.gguf",
                    "mmproj-a-4b-it-f16.gguf",
                    "mmproj-model-f16.gguf",
                ],
                one("mmproj-a-4b-it-f16.gguf"),
            ),
            // Another model's.
            (
                "b-Q4_0.gguf",
                &["a-4b-Q4_0.gguf", "b-Q4_0.gguf", "mmproj-a-4b-f16.gguf"],
                MmprojMatch::None,
            ),
            (
                "b-Q4_0.gguf",
                &["a-4b-Q4_0.gguf", "b-Q4_0.gguf", "mmproj-f16.gguf"],
                MmprojMatch::None,
            ),
            (
                "a.mmproj-less.gguf",
                &["a-Q4_0.gguf", "a.mmproj-q8_0.gguf"],
                one("a.mmproj-q8_0.gguf"),
            ),
            (
                "m.gguf",
                &["m.gguf", "mmproj-a-q8_0.gguf", "mmproj-b-q8_0.gguf"],
                MmprojMatch::Several(vec![
                    "mmproj-a-q8_0.gguf".into(),
                    "mmproj-b-q8_0.gguf".into(),
                ]),
            ),
            (
                "sub/m.gguf",
                &[
                    "sub/m.gguf",
                    "sub/mmproj-a-q8_0.gguf",
                    "sub/mmproj-b-fp16.gguf",
                ],
                one("sub/mmproj-b-fp16.gguf"),
            ),
        ];
        for (model, files, expected) in table {
            assert_eq!(match_mmproj(model, files), expected, "{model} {files:?}");
        }
    }
}
