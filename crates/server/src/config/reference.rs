//! The reference page, written from the tables of options.

use std::fmt::Write;

use super::options::{KEYS, MODELS, SECTIONS, Setting, model_variable};
use super::{Config, Key, Model};

const OPENING: &str = "\
# The configuration

What `loquat serve` can be told, and where. This page is written from the tables of options in
`crates/server/src/config/options`; a test fails where the two differ, and
`LOQUAT_WRITE_DOCS=1 cargo test -p loquat-server --lib config::` writes it anew. How to run and
operate the server stands in [serve.md](serve.md).

An option is set in a TOML file, by an environment variable, or by a flag of `loquat serve`; the
file counts least and the flag most:

1. The file that `--config FILE` names, or else the variable `LOQUAT_CONFIG`; none when neither
   does.
2. The environment. A variable that is empty counts as not set.
3. Flags, and models named on the command line. Those take the place of the file's models, except
   where one of them is called what was typed: then it is that model, with all that the file says
   of it, and it is loaded at start.

Variables and flags of a model's options hold for every model. Lists have commas between their
items there: `LOQUAT_CORS_ORIGINS=https://a.example,https://b.example`.

Sizes are written with their unit (`512MiB`, `6GiB`, `4GB`), times too (`250ms`, `30s`, `5m`,
`24h`).

`loquat config check [FILE]` says all that is wrong with a file, each with its line; `loquat config
show` what is in force, and who said so; `loquat config key NAME` makes a key.
";

const KEYS_TEXT: &str = "\
One table for each key; the key itself is nowhere but with its owner. Without any keys everybody who
reaches the server may use its models and read its metrics, and nobody may operate it. The scopes
are `inference` (ask models), `metrics` (read `/metrics` and `/stats`) and `admin` (operate it, under
`/admin`).";

const MODELS_TEXT: &str = "\
One table for each model. A request must name one, unless only one is served. The catalog's default
model is served where there is no table.";

/// The page, as Markdown.
pub fn page() -> String {
    let mut page = OPENING.to_owned();
    let mut config = Config::default();
    for section in SECTIONS {
        let rows = section.settings.iter().map(|setting| Row {
            variable: Some(section.variable(setting)),
            ..Row::of(setting, &mut config)
        });
        write(
            &mut page,
            &format!("[{}]", section.name),
            section.help,
            rows.collect(),
        );
    }
    let keys = KEYS
        .iter()
        .map(|setting| Row::of(setting, &mut Key::blank()));
    write(&mut page, "[[keys]]", KEYS_TEXT, keys.collect());
    let models = MODELS.iter().map(|setting| Row {
        variable: model_variable(setting),
        ..Row::of(setting, &mut Model::blank())
    });
    write(&mut page, "[[models]]", MODELS_TEXT, models.collect());
    page
}

struct Row {
    name: &'static str,
    what: String,
    default: String,
    variable: Option<String>,
    flag: Option<&'static str>,
    help: &'static str,
    example: &'static str,
}

impl Row {
    fn of<T>(setting: &Setting<T>, blank: &mut T) -> Self {
        let default = if setting.required {
            "must be given".to_owned()
        } else {
            setting
                .written(blank)
                .map_or_else(|| "not set".to_owned(), |value| format!("`{value}`"))
        };
        Self {
            name: setting.name,
            what: setting.what(blank),
            default,
            variable: None,
            flag: setting.flag,
            help: setting.help,
            example: setting.example,
        }
    }
}

/// Writing to a String cannot fail.
fn write(page: &mut String, title: &str, text: &str, rows: Vec<Row>) {
    let _ = write!(page, "\n## {title}\n\n{text}\n\n```toml\n{title}\n");
    for row in &rows {
        let _ = writeln!(page, "{} = {}", row.name, row.example);
    }
    page.push_str(
        "```\n\n| option | it is | default | variable, flag | |\n|---|---|---|---|---|\n",
    );
    for row in rows {
        let variable = row.variable.map(|name| format!("`{name}`"));
        let flag = row.flag.map(|name| format!("`--{name}`"));
        let ways: Vec<_> = variable.into_iter().chain(flag).collect();
        let _ = writeln!(
            page,
            "| `{}` | {} | {} | {} | {} |",
            row.name,
            row.what,
            row.default,
            ways.join(", "),
            row.help
        );
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    const PAGE: &str = "../../docs/config.md";
    const REWRITE: &str = "LOQUAT_WRITE_DOCS";

    #[test]
    fn the_reference_page_is_what_the_tables_say() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(PAGE);
        let expected = super::page();
        if std::env::var_os(REWRITE).is_some() {
            std::fs::write(&path, &expected).expect("the page is written");
        }
        let found = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            found == expected,
            "docs/config.md is out of date: {REWRITE}=1 cargo test -p loquat-server --lib config::"
        );
    }
}
