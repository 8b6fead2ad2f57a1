//! Completion of commands, and hints behind the cursor.

use std::collections::HashSet;

use loquat_store::Store;
use rustyline::completion::Pair;
use rustyline::hint::Hint;

use super::commands::{Argument, COMMANDS, CommandEntry};
use super::settings;
use super::transcript::expand_path;

/// The models that can be named without a path.
#[derive(Debug, Default)]
pub struct ModelNames(Vec<String>);

impl ModelNames {
    /// Names of the catalog and of local models.
    pub fn from_store(store: &Store) -> Self {
        // If local models cannot be listed, only the catalog is completed.
        let held = store.stored_models().unwrap_or_default();
        let held = held.into_iter().map(|held| held.name);
        let known = store.catalog().entries().iter().map(ToString::to_string);
        let mut names: Vec<String> = known.chain(held).collect();
        let mut seen = HashSet::new();
        names.retain(|name| seen.insert(name.clone()));
        Self(names)
    }
}

/// The start of the completed word, and its candidates.
pub fn complete(line: &str, models: &ModelNames) -> (usize, Vec<Pair>) {
    match parse_partial(line) {
        PartialCommand::Nothing => (0, Vec::new()),
        PartialCommand::Name(name) => {
            let entries = COMMANDS.iter().filter(|entry| entry.name.starts_with(name));
            (0, entries.map(command).collect())
        }
        PartialCommand::Argument(entry, argument) => {
            let start = line.len() - argument.len();
            let (offset, found) = self::argument(entry.argument, argument, models);
            (start + offset, found)
        }
    }
}

/// The part of a command typed so far.
enum PartialCommand<'a> {
    Nothing,
    Name(&'a str),
    Argument(&'static CommandEntry, &'a str),
}

fn parse_partial(line: &str) -> PartialCommand<'_> {
    let Some(rest) = line.strip_prefix('/') else {
        return PartialCommand::Nothing;
    };
    let Some((name, argument)) = rest.split_once(' ') else {
        return PartialCommand::Name(rest);
    };
    match COMMANDS.iter().find(|entry| entry.has_name(name)) {
        Some(entry) => PartialCommand::Argument(entry, argument.trim_start()),
        None => PartialCommand::Nothing,
    }
}

/// Followed by a space if the command takes an argument.
fn command(entry: &CommandEntry) -> Pair {
    let name = format!("/{}", entry.name);
    Pair {
        replacement: match entry.argument {
            Argument::None => name.clone(),
            _ => format!("{name} "),
        },
        display: name,
    }
}

fn argument(kind: Argument, typed: &str, models: &ModelNames) -> (usize, Vec<Pair>) {
    match kind {
        Argument::None | Argument::Text => (0, Vec::new()),
        Argument::Setting => (0, matching(settings::names(), &dashed(typed), "")),
        Argument::Assignment => match typed.split_once(' ') {
            None => (0, matching(settings::names(), &dashed(typed), " ")),
            Some((name, value)) => {
                let start = name.len() + 1;
                (start, matching(settings::values(name), value, ""))
            }
        },
        Argument::ReasoningDisplay => (0, matching(settings::values("show-reasoning"), typed, "")),
        Argument::File => (0, files(typed)),
        Argument::Model => {
            let mut found = matching(models.0.clone(), typed, "");
            found.extend(files(typed));
            (0, found)
        }
    }
}

/// Settings accept both spellings.
fn dashed(name: &str) -> String {
    name.replace('_', "-")
}

fn matching(known: Vec<String>, typed: &str, suffix: &str) -> Vec<Pair> {
    let known = known.into_iter().filter(|name| name.starts_with(typed));
    let pair = |name: String| Pair {
        replacement: format!("{name}{suffix}"),
        display: name,
    };
    known.map(pair).collect()
}

/// Files that match the typed prefix; directories end in a slash. Hidden files match only after a
/// typed dot.
fn files(typed: &str) -> Vec<Pair> {
    let leaf_at = typed.rfind('/').map_or(0, |slash| slash + 1);
    let (directory, leaf) = typed.split_at(leaf_at);
    let directory_path = match directory {
        "" => ".".into(),
        named => expand_path(named),
    };
    let entries = std::fs::read_dir(directory_path)
        .into_iter()
        .flatten()
        .flatten();
    let pair = |entry: std::fs::DirEntry| {
        let name = entry.file_name().into_string().ok()?;
        let matches = name.starts_with(leaf) && (!name.starts_with('.') || leaf.starts_with('.'));
        let slash = if entry.path().is_dir() { "/" } else { "" };
        matches.then(|| Pair {
            replacement: format!("{directory}{name}{slash}"),
            display: format!("{name}{slash}"),
        })
    };
    let mut found: Vec<Pair> = entries.filter_map(pair).collect();
    found.sort_by(|one, other| one.display.cmp(&other.display));
    found
}

/// A dimmed hint behind the cursor.
#[derive(Debug, PartialEq, Eq)]
pub struct Suggestion {
    shown: String,
    /// The part that the right arrow accepts.
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

/// The rest of a command's name, or its usage.
pub fn hint(line: &str) -> Option<Suggestion> {
    match parse_partial(line) {
        PartialCommand::Name(name) if !name.is_empty() => {
            let rest = |entry: &CommandEntry| entry.name.strip_prefix(name).map(str::to_owned);
            let entry = COMMANDS.iter().find(|entry| rest(entry).is_some())?;
            let rest = rest(entry)?;
            Some(Suggestion {
                shown: format!("{rest} {}", entry.usage).trim_end().to_owned(),
                typed: Some(rest).filter(|rest| !rest.is_empty()),
            })
        }
        PartialCommand::Argument(entry, "") if line.ends_with(' ') => Some(Suggestion {
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
        let models = ModelNames(models.map(str::to_owned).to_vec());
        let (start, found) = complete(line, &models);
        let whole = |pair: Pair| format!("{}{}", &line[..start], pair.replacement);
        found.into_iter().map(whole).collect()
    }

    #[test]
    fn commands_and_arguments_are_completed() {
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
        let root = directory.path().to_str().unwrap();
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
            let found = completed(&format!("/load {root}/{typed}"));
            let expected = expected.iter().map(|name| format!("/load {root}/{name}"));
            assert_eq!(found, expected.collect::<Vec<_>>(), "{typed:?}");
        }
    }

    #[test]
    fn hints_complete_names_and_show_usage() {
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
