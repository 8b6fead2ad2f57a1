//! What Tab adds to a command, and what is hinted at before it is pressed.

use std::collections::HashSet;

use loquat_store::Store;
use rustyline::completion::Pair;
use rustyline::hint::Hint;

use super::commands::{Argument, COMMANDS, Entry};
use super::keep::path_of;
use super::settings;

/// The models that can be named without a path.
#[derive(Debug, Default)]
pub struct Models(Vec<String>);

impl Models {
    /// Those of the catalog and those that are here.
    pub fn of(store: &Store) -> Self {
        // Without the ones that cannot be listed there is less to complete, and no more.
        let held = store.stored_models().unwrap_or_default();
        let held = held.into_iter().map(|held| held.name);
        let known = store.catalog().entries().iter().map(ToString::to_string);
        let mut names: Vec<String> = known.chain(held).collect();
        let mut seen = HashSet::new();
        names.retain(|name| seen.insert(name.clone()));
        Self(names)
    }
}

/// Where the word that is completed begins, and what it may become.
pub fn complete(line: &str, models: &Models) -> (usize, Vec<Pair>) {
    match typed(line) {
        Typed::Nothing => (0, Vec::new()),
        Typed::Name(name) => {
            let entries = COMMANDS.iter().filter(|entry| entry.name.starts_with(name));
            (0, entries.map(command).collect())
        }
        Typed::Argument(entry, argument) => {
            let start = line.len() - argument.len();
            let (offset, found) = self::argument(entry.argument, argument, models);
            (start + offset, found)
        }
    }
}

/// What has been typed of a command.
enum Typed<'a> {
    Nothing,
    Name(&'a str),
    Argument(&'static Entry, &'a str),
}

fn typed(line: &str) -> Typed<'_> {
    let Some(rest) = line.strip_prefix('/') else {
        return Typed::Nothing;
    };
    let Some((name, argument)) = rest.split_once(' ') else {
        return Typed::Name(rest);
    };
    match COMMANDS.iter().find(|entry| entry.is_called(name)) {
        Some(entry) => Typed::Argument(entry, argument.trim_start()),
        None => Typed::Nothing,
    }
}

/// With a space behind it where more is to come.
fn command(entry: &Entry) -> Pair {
    let name = format!("/{}", entry.name);
    Pair {
        replacement: match entry.argument {
            Argument::None => name.clone(),
            _ => format!("{name} "),
        },
        display: name,
    }
}

fn argument(kind: Argument, typed: &str, models: &Models) -> (usize, Vec<Pair>) {
    match kind {
        Argument::None | Argument::Text => (0, Vec::new()),
        Argument::Setting => (0, among(settings::names(), &dashed(typed), "")),
        Argument::Assignment => match typed.split_once(' ') {
            None => (0, among(settings::names(), &dashed(typed), " ")),
            Some((name, value)) => {
                let start = name.len() + 1;
                (start, among(settings::values(name), value, ""))
            }
        },
        Argument::How => (0, among(settings::values("show-reasoning"), typed, "")),
        Argument::File => (0, files(typed)),
        Argument::Model => {
            let mut found = among(models.0.clone(), typed, "");
            found.extend(files(typed));
            (0, found)
        }
    }
}

/// Settings are known with either.
fn dashed(name: &str) -> String {
    name.replace('_', "-")
}

fn among(known: Vec<String>, typed: &str, behind: &str) -> Vec<Pair> {
    let known = known.into_iter().filter(|name| name.starts_with(typed));
    let pair = |name: String| Pair {
        replacement: format!("{name}{behind}"),
        display: name,
    };
    known.map(pair).collect()
}

/// The files whose names begin so; directories end in a slash. Hidden ones are for those who
/// type the dot.
fn files(typed: &str) -> Vec<Pair> {
    let leaf_at = typed.rfind('/').map_or(0, |slash| slash + 1);
    let (directory, leaf) = typed.split_at(leaf_at);
    let place = match directory {
        "" => ".".into(),
        named => path_of(named),
    };
    let entries = std::fs::read_dir(place).into_iter().flatten().flatten();
    let pair = |entry: std::fs::DirEntry| {
        let name = entry.file_name().into_string().ok()?;
        let meant = name.starts_with(leaf) && (!name.starts_with('.') || leaf.starts_with('.'));
        let slash = if entry.path().is_dir() { "/" } else { "" };
        meant.then(|| Pair {
            replacement: format!("{directory}{name}{slash}"),
            display: format!("{name}{slash}"),
        })
    };
    let mut found: Vec<Pair> = entries.filter_map(pair).collect();
    found.sort_by(|one, other| one.display.cmp(&other.display));
    found
}

/// What is shown behind the cursor, dimmed.
#[derive(Debug, PartialEq, Eq)]
pub struct Suggestion {
    shown: String,
    /// As much of it as the right arrow types.
    typed: Option<String>,
}

impl Hint for Suggestion {
    fn display(&self) -> &str {
        &self.shown
    }

    fn completion(&self) -> Option<&str> {
        self.typed.as_deref()
    }
}

/// The rest of a command's name, or what belongs behind it.
pub fn hint(line: &str) -> Option<Suggestion> {
    match typed(line) {
        Typed::Name(name) if !name.is_empty() => {
            let rest = |entry: &Entry| entry.name.strip_prefix(name).map(str::to_owned);
            let entry = COMMANDS.iter().find(|entry| rest(entry).is_some())?;
            let rest = rest(entry)?;
            Some(Suggestion {
                shown: format!("{rest} {}", entry.usage).trim_end().to_owned(),
                typed: Some(rest).filter(|rest| !rest.is_empty()),
            })
        }
        Typed::Argument(entry, "") if line.ends_with(' ') => Some(Suggestion {
            shown: entry.usage.to_owned(),
            typed: None,
        }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn completed(line: &str) -> Vec<String> {
        let models = ["smollm2:135m", "smollm2:360m", "a/my_model"];
        let models = Models(models.map(str::to_owned).to_vec());
        let (start, found) = complete(line, &models);
        let whole = |pair: Pair| format!("{}{}", &line[..start], pair.replacement);
        found.into_iter().map(whole).collect()
    }

    #[test]
    fn commands_and_what_follows_them_are_completed() {
        for (line, expected) in [
            ("", vec![]),
            ("hello /s", vec![]),
            ("/st", vec!["/stats"]),
            (
                "/s",
                vec!["/set ", "/system ", "/save ", "/save! ", "/stats"],
            ),
            ("/nope ", vec![]),
            ("/set tem", vec!["/set temperature "]),
            (
                "/set top_",
                vec!["/set top-n-sigma ", "/set top-k ", "/set top-p "],
            ),
            ("/unset temp", vec!["/unset temperature"]),
            ("/set thinking m", vec!["/set thinking medium"]),
            ("/set temperature ", vec![]),
            ("/reasoning f", vec!["/reasoning full", "/reasoning folded"]),
            (
                "/model smol",
                vec!["/model smollm2:135m", "/model smollm2:360m"],
            ),
            ("/model a/my_", vec!["/model a/my_model"]),
            ("/system a", vec![]),
        ] {
            assert_eq!(completed(line), expected, "{line:?}");
        }
    }

    #[test]
    fn files_are_completed_name_by_name() {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path().to_str().unwrap();
        for name in ["a talk.json", "another.json", ".hidden"] {
            std::fs::write(directory.path().join(name), "").unwrap();
        }
        std::fs::create_dir(directory.path().join("über")).unwrap();
        for (typed, expected) in [
            ("", &["a talk.json", "another.json", "über/"][..]),
            ("a", &["a talk.json", "another.json"]),
            ("a ", &["a talk.json"]),
            (".", &[".hidden"]),
            ("ü", &["über/"]),
            ("x", &[]),
            ("no/where", &[]),
        ] {
            let found = completed(&format!("/load {place}/{typed}"));
            let expected = expected.iter().map(|name| format!("/load {place}/{name}"));
            assert_eq!(found, expected.collect::<Vec<_>>(), "{typed:?}");
        }
    }

    #[test]
    fn hints_finish_a_name_and_tell_what_follows() {
        let shown = |line| hint(line).map(|hint| (hint.shown, hint.typed));
        let some =
            |shown: &str, typed: Option<&str>| Some((shown.to_owned(), typed.map(str::to_owned)));
        for (line, expected) in [
            ("", None),
            ("/", None),
            ("hi", None),
            ("/sta", some("ts", Some("ts"))),
            ("/lo", some("ad FILE", Some("ad"))),
            ("/load", some(" FILE", None)),
            ("/load ", some("FILE", None)),
            ("/load x", None),
            ("/clear", some("", None)),
            ("/nope", None),
        ] {
            assert_eq!(shown(line), expected, "{line:?}");
        }
    }
}
