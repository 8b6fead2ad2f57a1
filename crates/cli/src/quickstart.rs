//! `loquat quickstart`: a configuration for this machine, to start from.

use std::fs::{self, File};
use std::io::Write;
use std::net::{IpAddr, TcpListener};
use std::path::{Path, PathBuf};

use loquat_server::config;
use loquat_store::Store;

use crate::args::QuickstartArgs;
use crate::backends;
use crate::error::CliError;
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
    let text = Choices::for_this_machine(&open_store()?)?.text(match to_stdout {
        true => Path::new("loquat.toml"),
        false => path,
    });
    if to_stdout {
        return print(&text);
    }
    write_whole(path, &text).map_err(|source| CliError::Write {
        path: path.clone(),
        source,
    })?;
    let shown = path.display();
    remark(&format!(
        "{shown} is written; start it with: loquat serve --config {shown}"
    ));
    Ok(())
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
        let machine = Machine::look(backend, store.cache_dir(), Measure::Enough)?;
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
{fit}# Load it at the start, instead of at the first request.
preload = true

# Other names under which clients may ask for it.
# aliases = [\"gpt-4o-mini\"]
# How it is sampled where a request does not say; the model's own settings when left out.
# [models.sampling]
# temperature = 0.7
",
            memory = self.memory(),
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
            memory / 100 * COMFORT >> 20
        )
    }
}

impl Chosen {
    /// The best that a configuration can name, or the catalog's default where nothing fits.
    fn among(outlooks: &[Outlook], machine: &Machine, store: &Store) -> Self {
        let nameable = |outlook: &&Outlook| {
            outlook.fits.runs() && outlook.roomy_context > 0 && !outlook.subject.name.contains(' ')
        };
        match outlooks.iter().find(nameable) {
            Some(best) => Self {
                source: best.subject.name.clone(),
                fit: machine.memory_bytes.map(|memory| Fit::of(best, memory)),
            },
            None => Self {
                source: store.default_model().to_string(),
                fit: None,
            },
        }
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

/// All of it or nothing, whatever happens meanwhile.
fn write_whole(path: &Path, text: &str) -> std::io::Result<()> {
    let draft = draft_beside(path);
    let write = || {
        let mut file = File::create_new(&draft)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&draft, path)
    };
    write().inspect_err(|_| {
        // A draft that was never made is not missed.
        let _ = fs::remove_file(&draft);
    })
}

fn draft_beside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{}", std::process::id()));
    name.into()
}
