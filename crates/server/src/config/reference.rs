//! Generates the reference page from the tables of options.

use std::fmt::Write;

use super::options::{KEYS, MODELS, SECTIONS, Setting, model_variable};
use super::{Config, Key, ModelConfig};

const OPENING: &str = "\
# The configuration

All options of `loquat serve`. This page is generated from the tables in
`crates/server/src/config/options`: a test fails if it is out of date, and
`LOQUAT_WRITE_DOCS=1 cargo test -p loquat-server --lib config::` updates it. For how to run and
operate the server see [serve.md](serve.md).

An option is set in a TOML file, by an environment variable, or by a flag of `loquat serve`. Later
sources override earlier ones:

1. The file named by `--config FILE`, or else by the variable `LOQUAT_CONFIG`.
2. The environment. An empty variable counts as unset.
3. Flags, and models named on the command line. Those replace the file's models. If the name is that
   of a model in the file, it selects this model with all its options, and loads it at start.

Variables and flags for a model's option apply to every model. In them, lists are separated by
commas: `LOQUAT_CORS_ORIGINS=https://a.example,https://b.example`.

Sizes and durations need a unit: `512MiB`, `6GiB`, `4GB`; `250ms`, `30s`, `5m`, `24h`.

`loquat config check [FILE]` lists all errors of a file with their lines. `loquat config show` prints
the effective configuration and where each value comes from. `loquat config key NAME` generates a
key.
";

const KEYS_TEXT: &str = "\
One table per key. The server stores only the key's hash. Without keys, anyone who can reach the
server may use its models and read its metrics, and the admin API is off. The scopes are `inference`
(use models), `metrics` (read `/metrics` and `/stats`), `manage` (affect other clients' requests: set
`keep_alive`, use negative priorities) and `admin` (use `/admin`; includes `manage`).";

const MODELS_TEXT: &str = "\
One table per model. A request must name one, unless only one is served. Without a table, the
catalog's default model is served.";

/// The page, as Markdown.
pub fn page() -> String {
    let mut page = OPENING.to_owned();
    let mut config = Config::default();
    for section in SECTIONS {
        let rows = section.settings.iter().map(|setting| Row {
            variable: Some(section.variable(setting)),
            ..Row::for_setting(setting, &mut config)
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
        .map(|setting| Row::for_setting(setting, &mut Key::blank()));
    write(&mut page, "[[keys]]", KEYS_TEXT, keys.collect());
    let models = MODELS.iter().map(|setting| Row {
        variable: model_variable(setting),
        ..Row::for_setting(setting, &mut ModelConfig::blank())
    });
    write(&mut page, "[[models]]", MODELS_TEXT, models.collect());
    page
}

struct Row {
    name: &'static str,
    expected: String,
    default: String,
    variable: Option<String>,
    flag: Option<&'static str>,
    help: &'static str,
    example: &'static str,
}

impl Row {
    fn for_setting<T>(setting: &Setting<T>, blank: &mut T) -> Self {
        let default = if setting.required {
            "required".to_owned()
        } else {
            setting
                .to_toml(blank)
                .map_or_else(|| "not set".to_owned(), |value| format!("`{value}`"))
        };
        Self {
            name: setting.name,
            expected: setting.expected(blank),
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
        "```\n\n| option | value | default | variable, flag | description |\n|---|---|---|---|---|\n",
    );
    for row in rows {
        let variable = row.variable.map(|name| format!("`{name}`"));
        let flag = row.flag.map(|name| format!("`--{name}`"));
        let overrides: Vec<_> = variable.into_iter().chain(flag).collect();
        let _ = writeln!(
            page,
            "| `{}` | {} | {} | {} | {} |",
            row.name,
            row.expected,
            row.default,
            overrides.join(", "),
            row.help
        );
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn reference_page_is_up_to_date() {
        let tests = "-p loquat-server --lib config::";
        loquat_testkit::docs::assert_current("docs/config.md", &super::page(), tests);
    }
}
