//! `loquat quickstart`: writes a starting configuration for this machine.

use std::io;
use std::net::{IpAddr, TcpListener};
use std::path::Path;

use loquat_server::config;
use loquat_store::{FileKind, ModelQuery, Store};

use crate::args::QuickstartArgs;
use crate::backends;
use crate::error::CliError;
use crate::files::write_whole;
use crate::fit::{COMFORTABLE_PERCENT, FitEstimate, Machine, MeasurePolicy, for_catalog};
use crate::load::open_store;
use crate::terminal::{bytes, print, remark};

/// Means stdout.
const STDOUT: &str = "-";

pub fn run(args: &QuickstartArgs) -> Result<(), CliError> {
    let path = &args.output;
    let to_stdout = path == Path::new(STDOUT);
    // Before the machine is measured.
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
        "Wrote {shown}. Start the server with: loquat serve --config {shown}{download}"
    ));
    Ok(())
}

/// Refuses to overwrite a file that appeared in the meantime, unless `force`.
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

/// The values of the configuration.
struct Choices {
    machine: Machine,
    model: ServedModel,
    host: IpAddr,
    default_port: u16,
    /// `None` if no port near the default is free.
    port: Option<u16>,
}

struct ServedModel {
    source: String,
    /// If it is not the default kind.
    kind: Option<FileKind>,
    weight_bytes: u64,
    /// If the machine reports its memory.
    fit: Option<Capacity>,
}

struct Capacity {
    context: u64,
    parallel: u64,
    /// Memory at this context and parallelism.
    bytes: u64,
}

/// Longer contexts are rarely used and cost memory.
const MAX_CONTEXT: u64 = 32768;
const MAX_PARALLEL: u64 = 8;
/// Ports to try, starting at the default.
const PORTS: u16 = 20;

impl Choices {
    fn for_this_machine(store: &Store) -> Result<Self, CliError> {
        let backend = backends::select("auto")?;
        let machine = Machine::detect(backend, store.cache_dir(), MeasurePolicy::IfStale)?;
        let estimates = for_catalog(store, &machine, None);
        let config::Server { host, port, .. } = config::Server::default();
        let mut ports = port..port.saturating_add(PORTS);
        Ok(Self {
            model: ServedModel::best(&estimates, &machine, store),
            machine,
            host,
            default_port: port,
            port: ports.find(|port| TcpListener::bind((host, *port)).is_ok()),
        })
    }

    fn text(&self, path: &Path) -> String {
        let Self { machine, host, .. } = self;
        let version = env!("CARGO_PKG_VERSION");
        // A comment has one line.
        let file = path.to_string_lossy().replace(char::is_control, " ");
        let device = &machine.device;
        let port = self.port.unwrap_or(self.default_port);
        let about_port = match self.port {
            Some(port) if port == self.default_port => "",
            Some(_) => "# The default port is in use.\n",
            None => "# This port and the next ones are in use: choose another.\n",
        };
        let source = &self.model.source;
        format!(
            "\
# Written by `loquat quickstart` (loquat {version}) for {device}.
# To start it:     loquat serve --config {file}
# To check it:     loquat config check {file}
# Every option:    loquat config reference

[server]
# Local access only. For remote access use \"0.0.0.0\" and add keys below.
host = \"{host}\"
{about_port}port = {port}
{memory}
# API keys: one table for each key that `loquat config key NAME` creates. Without keys, everybody
# who can reach the port has access.
# [[keys]]
# name = \"me\"
# hash = \"sha256:…\"

# One table for each model; requests select by name. It is downloaded when the server starts.
[[models]]
# The name for clients.
name = \"{source}\"
# A catalog name (`loquat fit` lists those that fit this machine), a path, or owner/name on the
# hub.
source = \"{source}\"
{kind}{fit}# Load it at startup instead of at the first request.
preload = true

# Other names that clients may use.
# aliases = [\"gpt-4o-mini\"]
# Sampling defaults for requests that set none; by default the model's.
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
            "\n[memory]\n# Memory for all models together: three quarters of {}.\ntotal = \
             \"{}MiB\"\n",
            bytes(memory),
            ((memory / 100 * COMFORTABLE_PERCENT) >> 20).max(1)
        )
    }
}

impl ServedModel {
    /// The best model that fits, or the catalog's default.
    fn best(estimates: &[FitEstimate], machine: &Machine, store: &Store) -> Self {
        let fits =
            |estimate: &&FitEstimate| estimate.fits.runs() && estimate.comfortable_context > 0;
        match estimates.iter().find(fits) {
            Some(best) => Self {
                source: best.subject.name.clone(),
                kind: best.subject.kind,
                weight_bytes: best.subject.weight_bytes,
                fit: machine
                    .memory_bytes
                    .map(|memory| Capacity::plan(best, memory)),
            },
            None => Self::catalog_default(store),
        }
    }

    fn catalog_default(store: &Store) -> Self {
        let default = store.default_model();
        let form = default.usual_form();
        Self {
            source: default.to_string(),
            kind: None,
            weight_bytes: form.map_or(0, |form| default.size(form).bytes),
            fit: None,
        }
    }

    /// A note on what starting the server downloads; `None` if the model is local.
    fn download(&self, store: &Store) -> Option<String> {
        let wanted = ModelQuery {
            reference: &self.source,
            kind: self.kind,
            ..ModelQuery::default()
        };
        // If the lookup fails, assume a download.
        let is_here = store
            .locate_cached(&wanted)
            .is_ok_and(|here| here.is_some());
        (!is_here).then(|| {
            let (source, size) = (&self.source, bytes(self.weight_bytes));
            format!(" (downloads {source}, about {size}, on first start)")
        })
    }

    fn kind(&self) -> String {
        let Some(kind) = self.kind else {
            return String::new();
        };
        format!("# Files of this kind fit where the default ones do not.\nkind = \"{kind}\"\n")
    }

    fn fit(&self) -> String {
        let Some(Capacity {
            context,
            parallel,
            bytes: need,
        }) = self.fit
        else {
            return String::new();
        };
        format!(
            "# Tokens of a prompt and its answer together, and parallel requests; others wait. \
             It needs\n# about {}.\ncontext = {context}\nparallel = {parallel}\n",
            bytes(need)
        )
    }
}

impl Capacity {
    fn plan(estimate: &FitEstimate, memory: u64) -> Self {
        let subject = &estimate.subject;
        let context = estimate.comfortable_context.min(MAX_CONTEXT);
        let context = match context {
            0..1024 => context,
            _ => context / 1024 * 1024,
        };
        let sequence = subject.kv.bytes(context);
        let left = (memory / 100 * COMFORTABLE_PERCENT).saturating_sub(subject.need(0));
        let parallel = left.checked_div(sequence).unwrap_or(MAX_PARALLEL);
        let parallel = parallel.clamp(1, MAX_PARALLEL);
        Self {
            context,
            parallel,
            bytes: subject
                .need(0)
                .saturating_add(sequence.saturating_mul(parallel)),
        }
    }
}

#[cfg(test)]
mod tests {
    use loquat_server::config::Sources;
    use loquat_store::StoreOptions;

    use super::*;

    fn choices(store: &Store, memory_bytes: Option<u64>, port: Option<u16>) -> Choices {
        let machine = Machine {
            backend: "cpu",
            device: "cpu (1 thread)".to_owned(),
            is_gpu: false,
            memory_bytes,
            available_bytes: None,
            speed: None,
            reported_bytes_per_second: None,
        };
        let estimates = for_catalog(store, &machine, None);
        Choices {
            model: ServedModel::best(&estimates, &machine, store),
            machine,
            host: [127, 0, 0, 1].into(),
            default_port: 8080,
            port,
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

    /// The largest model, which fits only in its MLX form.
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
sources = [{ type = "hub", repo = "no/twofold" }]

[[model.forms]]
kind = "mlx"
quant = "4bit"
bytes = 600_000_000
sources = [{ type = "hub", repo = "no/twofold-mlx" }]
"#;

    #[test]
    fn served_form_is_one_that_fits() {
        let folder = tempfile::tempdir().unwrap();
        let store = store_in(folder.path(), TWOFOLD);
        let choices = choices(&store, Some(64 << 30), Some(8080));
        let model = read(&choices.text(Path::new("loquat.toml")))
            .models
            .remove(0);
        assert_eq!(
            (model.name.as_str(), model.source.as_str()),
            ("twofold:big", "twofold:big")
        );
        assert_eq!(model.kind, Some(FileKind::Mlx));
        let download = choices.model.download(&store).unwrap();
        assert!(download.contains("twofold:big, about 600 MB"), "{download}");
    }

    #[test]
    fn existing_file_is_kept_without_force() {
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

    #[test]
    fn written_configuration_is_valid() {
        let folder = tempfile::tempdir().unwrap();
        let store = store_in(folder.path(), "");
        for (memory, port, model) in [
            (Some(64 << 30), Some(8080), "context = 32768"),
            (Some(64 << 30), Some(8085), "The default port is in use"),
            (Some(2 << 30), None, "choose another"),
            (Some(1 << 20), Some(8080), "smollm2:135m"),
            (None, Some(8080), "source = "),
        ] {
            let choices = choices(&store, memory, port);
            let text = choices.text(Path::new("a\nb.toml"));
            assert!(text.contains(model), "{text}");
            let config = read(&text);
            assert_eq!(config.models.len(), 1);
            assert_eq!(config.server.port, port.unwrap_or(8080));
        }
    }
}
