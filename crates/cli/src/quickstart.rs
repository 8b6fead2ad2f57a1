//! `loquat quickstart`: a configuration for this machine, to start from.

use std::io;
use std::net::{IpAddr, TcpListener};
use std::path::Path;

use loquat_server::config;
use loquat_store::{FileKind, ModelQuery, Store};

use crate::args::QuickstartArgs;
use crate::backends;
use crate::error::CliError;
use crate::files::write_whole;
use crate::fit::{COMFORT, Machine, Measure, Outlook, of_catalog};
use crate::load::open_store;
use crate::terminal::{bytes, print, remark};

/// What stands for stdout.
const STDOUT: &str = "-";

pub fn run(args: &QuickstartArgs) -> Result<(), CliError> {
    let path = &args.output;
    let to_stdout = path == Path::new(STDOUT);
    // Before a measurement that would be in vain.
    if !to_stdout && !args.force && path.symlink_metadata().is_ok() {
        return Err(CliError::Exists { path: path.clone() });
    }
    let store = open_store()?;
    let choices = Choices::for_this_machine(&store)?;
    let text = choices.text(if to_stdout {
        Path::new("loquat.toml")
    } else {
        path
    });
    if to_stdout {
        return print(&text);
    }
    write(path, &text, args.force)?;
    let shown = path.display();
    let download = choices.model.download(&store).unwrap_or_default();
    remark(&format!(
        "{shown} is written; start it with: loquat serve --config {shown}{download}"
    ));
    Ok(())
}

/// A file that somebody made meanwhile is theirs, too.
fn write(path: &Path, text: &str, force: bool) -> Result<(), CliError> {
    write_whole(path, text, force).map_err(|source| match source.kind() {
        io::ErrorKind::AlreadyExists => CliError::Exists {
            path: path.to_owned(),
        },
        _ => CliError::Write {
            path: path.to_owned(),
            source,
        },
    })
}

/// What is decided for the reader.
struct Choices {
    machine: Machine,
    model: Chosen,
    host: IpAddr,
    usual_port: u16,
    /// `None` where none near the usual one is free.
    port: Option<u16>,
}

struct Chosen {
    source: String,
    /// Where it is not the usual one.
    kind: Option<FileKind>,
    weight_bytes: u64,
    /// Where the machine tells enough to say.
    fit: Option<Fit>,
}

struct Fit {
    context: u64,
    parallel: u64,
    /// What it needs so.
    bytes: u64,
}

/// More is seldom filled, and every token of it is memory.
const LONGEST_CONTEXT: u64 = 32768;
const MOST_PARALLEL: u64 = 8;
/// Ports to look at, from the usual one on.
const PORTS: u16 = 20;

impl Choices {
    fn for_this_machine(store: &Store) -> Result<Self, CliError> {
        let backend = backends::select("auto")?;
        let machine = Machine::look(backend, store.cache_dir(), Measure::WhenOld)?;
        let outlooks = of_catalog(store, &machine, None);
        let config::Server { host, port, .. } = config::Server::default();
        let mut ports = port..port.saturating_add(PORTS);
        Ok(Self {
            model: Chosen::among(&outlooks, &machine, store),
            machine,
            host,
            usual_port: port,
            port: ports.find(|port| TcpListener::bind((host, *port)).is_ok()),
        })
    }

    fn text(&self, path: &Path) -> String {
        let Self { machine, host, .. } = self;
        let version = env!("CARGO_PKG_VERSION");
        // A comment has one line.
        let file = path.to_string_lossy().replace(char::is_control, " ");
        let device = &machine.device;
        let port = self.port.unwrap_or(self.usual_port);
        let about_port = match self.port {
            Some(port) if port == self.usual_port => "",
            Some(_) => "# The usual one is taken here.\n",
            None => "# It is taken, and so are those after it: choose another.\n",
        };
        let source = &self.model.source;
        format!(
            "\
# Written by `loquat quickstart` (loquat {version}) for {device}.
# To start it:     loquat serve --config {file}
# To check it:     loquat config check {file}
# Every option:    loquat config reference

[server]
# This machine alone. For others: \"0.0.0.0\", and keys below.
host = \"{host}\"
{about_port}port = {port}
{memory}
# Who may use it: a table for each key that `loquat config key NAME` makes. While there is none,
# everybody who reaches the port may.
# [[keys]]
# name = \"me\"
# hash = \"sha256:…\"

# One table for each model; requests choose by name. It is fetched when the server starts.
[[models]]
# What clients call it.
name = \"{source}\"
# A name of the catalog (`loquat fit` lists those that suit this machine), a path, or owner/name of
# the hub.
source = \"{source}\"
{kind}{fit}# Load it at the start, instead of at the first request.
preload = true

# Other names under which clients may ask for it.
# aliases = [\"gpt-4o-mini\"]
# How it is sampled where a request does not say; the model's own settings when left out.
# [models.sampling]
# temperature = 0.7
",
            memory = self.memory(),
            kind = self.model.kind(),
            fit = self.model.fit(),
        )
    }

    fn memory(&self) -> String {
        let Some(memory) = self.machine.memory_bytes else {
            return String::new();
        };
        format!(
            "\n[memory]\n# All that models may take together: three quarters of {}.\ntotal = \
             \"{}MiB\"\n",
            bytes(memory),
            ((memory / 100 * COMFORT) >> 20).max(1)
        )
    }
}

impl Chosen {
    /// The best that fits, or the catalog's default where nothing does.
    fn among(outlooks: &[Outlook], machine: &Machine, store: &Store) -> Self {
        let fits = |outlook: &&Outlook| outlook.fits.runs() && outlook.roomy_context > 0;
        match outlooks.iter().find(fits) {
            Some(best) => Self {
                source: best.subject.name.clone(),
                kind: best.subject.kind,
                weight_bytes: best.subject.weight_bytes,
                fit: machine.memory_bytes.map(|memory| Fit::of(best, memory)),
            },
            None => Self::default_of(store),
        }
    }

    fn default_of(store: &Store) -> Self {
        let default = store.default_model();
        let form = default.usual_form();
        Self {
            source: default.to_string(),
            kind: None,
            weight_bytes: form.map_or(0, |form| default.size(form).bytes),
            fit: None,
        }
    }

    /// What starting the server downloads, in the words that follow its command; `None` where the
    /// model is here.
    fn download(&self, store: &Store) -> Option<String> {
        let wanted = ModelQuery {
            reference: &self.source,
            kind: self.kind,
        };
        // What cannot be looked up now is fetched then.
        let is_here = store
            .locate_cached(&wanted)
            .is_ok_and(|here| here.is_some());
        (!is_here).then(|| {
            let (source, size) = (&self.source, bytes(self.weight_bytes));
            format!(" (downloads {source}, about {size}, the first time)")
        })
    }

    fn kind(&self) -> String {
        let Some(kind) = self.kind else {
            return String::new();
        };
        format!(
            "# Its files of this kind: they fit where the usual ones do not.\nkind = \"{kind}\"\n"
        )
    }

    fn fit(&self) -> String {
        let Some(Fit {
            context,
            parallel,
            bytes: need,
        }) = self.fit
        else {
            return String::new();
        };
        format!(
            "# Tokens of a prompt and its answer together, and requests at once; the others wait. \
             So it needs\n# about {}.\ncontext = {context}\nparallel = {parallel}\n",
            bytes(need)
        )
    }
}

impl Fit {
    fn of(outlook: &Outlook, memory: u64) -> Self {
        let subject = &outlook.subject;
        let context = outlook.roomy_context.min(LONGEST_CONTEXT);
        let context = match context {
            0..1024 => context,
            _ => context / 1024 * 1024,
        };
        let sequence = subject.kv_bytes_per_token.saturating_mul(context);
        let left = (memory / 100 * COMFORT).saturating_sub(subject.need(0));
        let parallel = left.checked_div(sequence).unwrap_or(MOST_PARALLEL);
        let parallel = parallel.clamp(1, MOST_PARALLEL);
        Self {
            context,
            parallel,
            bytes: subject.need(context.saturating_mul(parallel)),
        }
    }
}

#[cfg(test)]
mod tests {
    use loquat_server::config::Sources;
    use loquat_store::StoreOptions;

    use super::*;

    fn machine(memory_bytes: Option<u64>) -> Machine {
        Machine {
            backend: "cpu",
            device: "cpu (1 thread)".to_owned(),
            is_gpu: false,
            memory_bytes,
            available_bytes: None,
            pace: None,
        }
    }

    fn store_in(folder: &Path, catalog: &str) -> Store {
        let path = folder.join("catalog.toml");
        std::fs::write(&path, catalog).unwrap();
        let mut options = StoreOptions {
            cache_dir: Some(folder.to_owned()),
            catalog: Some(path),
            ..StoreOptions::default()
        };
        options.hub.cache_dir = Some(folder.join("hub"));
        options.hub.offline = true;
        Store::open(options).unwrap()
    }

    fn read(text: &str) -> config::Config {
        let sources = Sources {
            file: Some(("loquat.toml".into(), text.to_owned())),
            environment: Vec::new(),
            flags: Vec::new(),
            models: Vec::new(),
            default_model: None,
        };
        let settled = sources.read();
        settled
            .unwrap_or_else(|error| panic!("{error}: {text}"))
            .config
    }

    /// A model that is worth more than any other, and fits in its MLX form alone.
    const TWOFOLD: &str = r#"
[[model]]
name = "twofold"
tags = ["big"]
family = "llama"
parameters = 9_000_000_000_000
context = 4096
licence = "none"
kind = "instruct"
kv = { layers = 2, heads = 1, width = 64 }

[[model.forms]]
kind = "gguf"
quant = "Q8_0"
file = "twofold.gguf"
bytes = 9_000_000_000_000
[[model.forms.sources]]
type = "hub"
repo = "no/twofold"

[[model.forms]]
kind = "mlx"
quant = "4bit"
bytes = 600_000_000
[[model.forms.sources]]
type = "hub"
repo = "no/twofold-mlx"
"#;

    #[test]
    fn the_form_that_fits_is_the_one_that_is_served() {
        let folder = tempfile::tempdir().unwrap();
        let store = store_in(folder.path(), TWOFOLD);
        let machine = machine(Some(64 << 30));
        let outlooks = of_catalog(&store, &machine, None);
        let choices = Choices {
            model: Chosen::among(&outlooks, &machine, &store),
            machine,
            host: [127, 0, 0, 1].into(),
            usual_port: 8080,
            port: Some(8080),
        };
        let model = read(&choices.text(Path::new("loquat.toml")))
            .models
            .remove(0);
        assert_eq!(
            (model.name.as_str(), model.source.as_str()),
            ("twofold:big", "twofold:big")
        );
        assert_eq!(model.kind, Some(config::FileKind::Mlx));
        let download = choices.model.download(&store).unwrap();
        assert!(download.contains("twofold:big, about 600 MB"), "{download}");
    }

    #[test]
    fn what_was_made_meanwhile_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("loquat.toml");
        std::fs::write(&path, "theirs").unwrap();
        let refused = write(&path, "ours", false);
        assert!(
            matches!(refused, Err(CliError::Exists { .. })),
            "{refused:?}"
        );
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "theirs");
        write(&path, "ours", true).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "ours");
        let files = std::fs::read_dir(folder.path()).unwrap();
        assert_eq!(files.count(), 1, "no draft is left");
    }

    /// On a machine with an empty catalog's worth of choices, and on ones that tell nothing.
    #[test]
    fn whatever_is_chosen_can_be_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let store = store_in(folder.path(), "");
        for (memory, port, model) in [
            (Some(64 << 30), Some(8080), "context = 32768"),
            (Some(64 << 30), Some(8085), "The usual one is taken"),
            (Some(2 << 30), None, "choose another"),
            (Some(1 << 20), Some(8080), "smollm2:135m"),
            (None, Some(8080), "source = "),
        ] {
            let machine = machine(memory);
            let outlooks = of_catalog(&store, &machine, None);
            let choices = Choices {
                model: Chosen::among(&outlooks, &machine, &store),
                machine,
                host: [127, 0, 0, 1].into(),
                usual_port: 8080,
                port,
            };
            let text = choices.text(Path::new("a\nb.toml"));
            assert!(text.contains(model), "{text}");
            let config = read(&text);
            assert_eq!(config.models.len(), 1);
            assert_eq!(config.server.port, port.unwrap_or(8080));
        }
    }
}
