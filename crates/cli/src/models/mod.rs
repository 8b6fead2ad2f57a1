//! Commands about local models and the catalog.

mod age;
mod show;

use loquat_bench::Table;
use loquat_convert::{leftovers, remove_leftovers};
use loquat_store::{
    HashSource, ModelCandidate, ModelCandidates, ModelQuery, Owner, Prunable, PruneOptions, Store,
    StoreError, StoredModel, VerifyReport,
};
use serde_json::{Value, json};

use crate::args::{ModelsArgs, PruneArgs, PullArgs, RmArgs, SearchArgs, VerifyArgs};
use crate::convert;
use crate::error::CliError;
use crate::load::{open_store, open_store_on};
use crate::progress::DownloadBar;
use crate::terminal::{bytes, print, print_json, remark};
use age::since;

pub use show::show;

/// `loquat models`.
pub fn list(args: &ModelsArgs) -> Result<(), CliError> {
    let held = open_store()?.stored_models()?;
    if args.json {
        return print_json(&held.iter().map(as_json).collect());
    }
    if held.is_empty() {
        remark(
            "No local models. `loquat search` lists the catalog, `loquat pull` downloads a model.",
        );
        return Ok(());
    }
    let mut table = Table::text_only(&["NAME", "KIND", "QUANT", "SIZE", "LAST USED", "SOURCE"]);
    for held in &held {
        let shared = match held.owner {
            Owner::Store => "",
            Owner::Shared => " (shared)",
        };
        table.row([
            held.name.clone(),
            kind(held),
            held.quant.clone().unwrap_or_default(),
            bytes(held.bytes),
            held.last_used.map_or_else(|| "never".to_owned(), since),
            format!("{}{shared}", held.source),
        ]);
    }
    print(&table.text())
}

/// The format, and whether it is an adapter.
fn kind(held: &StoredModel) -> String {
    let adapter = if held.is_adapter { " adapter" } else { "" };
    format!("{}{adapter}", held.kind)
}

/// `loquat pull`.
pub fn pull(args: &PullArgs) -> Result<(), CliError> {
    let store = open_store_on(args.network)?;
    let wanted = ModelQuery {
        reference: &args.model,
        kind: args.kinds.kind(),
        ..ModelQuery::default()
    };
    let located = store.pull(&wanted, &mut DownloadBar::default())?;
    if args.json {
        return print_json(
            &json!({ "name": located.name, "path": located.path.to_string_lossy() }),
        );
    }
    print(&format!(
        "{} is at {}\n",
        located.name,
        located.path.display()
    ))
}

/// `loquat rm`. Checks all models before it removes any.
pub fn remove(args: &RmArgs) -> Result<(), CliError> {
    let store = open_store()?;
    let found = args.models.iter().map(|reference| {
        find_one(
            &store,
            &ModelQuery {
                reference,
                kind: args.kinds.kind(),
                ..ModelQuery::default()
            },
        )
    });
    let found = found.collect::<Result<Vec<StoredModel>, CliError>>()?;
    found.iter().try_for_each(StoredModel::check_owned)?;
    let mut removed = Vec::new();
    for held in &found {
        let freed = store.remove(held, &mut DownloadBar::default())?;
        if args.json {
            removed.push(json!({ "name": held.name, "freed_bytes": freed }))
        } else {
            print(&format!("removed {}, freed {}\n", held.name, bytes(freed)))?
        }
    }
    if args.json {
        print_json(&removed.into())
    } else {
        Ok(())
    }
}

/// `loquat verify`. Fails if a file is damaged.
pub fn verify(args: &VerifyArgs) -> Result<(), CliError> {
    let store = open_store()?;
    let held = match &args.model {
        Some(reference) => {
            let kind = args.kinds.kind();
            store.find_stored(&ModelQuery {
                reference,
                kind,
                ..ModelQuery::default()
            })?
        }
        None => store.stored_models()?,
    };
    let (mut results, mut damaged) = (Vec::new(), Vec::new());
    for held in &held {
        let verdict = store.verify(held, &mut DownloadBar::default())?;
        if args.json {
            results.push(json!({
                "name": held.name,
                "valid": verdict.damaged.is_empty(),
                "damaged": verdict.damaged,
                "not_checked": verdict.unchecked,
            }))
        } else {
            print(&verdict_text(held, &verdict))?
        }
        if !verdict.damaged.is_empty() {
            damaged.push(format!("{} ({})", held.name, held.path.display()));
        }
    }
    if args.json {
        print_json(&results.into())?;
    }
    if damaged.is_empty() {
        Ok(())
    } else {
        Err(CliError::Damaged(damaged))
    }
}

fn verdict_text(held: &StoredModel, verdict: &VerifyReport) -> String {
    let VerifyReport {
        damaged, unchecked, ..
    } = verdict;
    let mut text = match &damaged[..] {
        [] => format!("{}: valid\n", held.name),
        files => format!("{}: damaged\n  {}\n", held.name, files.join("\n  ")),
    };
    for file in unchecked {
        text += &format!("  {file}: not checked, no hash known\n");
    }
    text
}

/// `loquat prune`.
pub fn prune(args: &PruneArgs) -> Result<(), CliError> {
    let store = open_store()?;
    let options = PruneOptions {
        older_than: args.older_than,
    };
    let conversions = convert::records(&store);
    let (mut found, left) = if args.dry_run {
        (store.prunable(options)?, leftovers(&conversions))
    } else {
        let found = store.prune(options, &mut DownloadBar::default())?;
        (found, remove_leftovers(&conversions)?)
    };
    found.extend(left.into_iter().map(|left| Prunable::Leftover {
        path: left.path,
        bytes: left.bytes,
    }));
    let total: u64 = found.iter().map(Prunable::bytes).sum();
    if args.json {
        let found: Vec<Value> = found.iter().map(prunable_as_json).collect();
        return print_json(&json!({
            "dry_run": args.dry_run, "freed_bytes": total, "removed": found,
        }));
    }
    let (removed, freed) = if args.dry_run {
        ("would remove", "would free")
    } else {
        ("removed", "freed")
    };
    for prunable in &found {
        let name = match prunable {
            Prunable::Leftover { path, .. } => path.display().to_string(),
            Prunable::Model(held) => held.name.clone(),
        };
        print(&format!("{removed} {name}, {}\n", bytes(prunable.bytes())))?;
    }
    print(&format!("{freed} {}\n", bytes(total)))
}

fn prunable_as_json(prunable: &Prunable) -> Value {
    match prunable {
        Prunable::Leftover { path, bytes } => {
            json!({ "path": path.to_string_lossy(), "bytes": bytes })
        }
        Prunable::Model(held) => json!({ "model": held.name, "bytes": held.bytes }),
    }
}

/// `loquat search`.
pub fn search(args: &SearchArgs) -> Result<(), CliError> {
    let store = open_store()?;
    let words: Vec<&str> = args
        .words
        .iter()
        .flat_map(|word| word.split_whitespace())
        .collect();
    let found = store.catalog().search(&words);
    if args.json {
        return print_json(
            &found
                .iter()
                .map(|entry| show::entry_as_json(entry))
                .collect(),
        );
    }
    if found.is_empty() {
        remark("No matches in the catalog. `loquat search` lists all of it.");
        return Ok(());
    }
    let mut table = Table::text_only(&["NAME", "PARAMETERS", "CONTEXT", "LICENCE", "FORMS"]);
    for entry in found {
        let forms: Vec<String> = entry
            .forms
            .iter()
            .map(|form| format!("{} {}, {}", form.kind, form.quant, show::size(entry, form)))
            .collect();
        table.row([
            entry.to_string(),
            show::count(entry.parameters),
            entry.context.to_string(),
            entry.licence.clone(),
            forms.join("; "),
        ]);
    }
    print(&table.text())
}

/// The only local model that matches.
fn find_one(store: &Store, wanted: &ModelQuery<'_>) -> Result<StoredModel, CliError> {
    let mut found = store.find_stored(wanted)?;
    if let [_] = found[..] {
        return Ok(found.remove(0));
    }
    let same_name =
        |held: &StoredModel| found.iter().filter(|other| other.name == held.name).count() > 1;
    let candidates = found.iter().map(|held| ModelCandidate {
        kind: held.kind,
        quant: held.quant.clone(),
        bytes: Some(held.bytes),
        selector: if same_name(held) {
            format!("{} {}", held.name, held.kind.flag())
        } else {
            held.name.clone()
        },
    });
    Err(StoreError::Ambiguous {
        reference: wanted.reference.to_owned(),
        candidates: ModelCandidates(candidates.collect()),
    }
    .into())
}

fn as_json(held: &StoredModel) -> Value {
    json!({
        "name": held.name,
        "kind": held.kind.name(),
        "adapter": held.is_adapter,
        "quant": held.quant,
        "bytes": held.bytes,
        "last_used": held.last_used,
        "source": held.source,
        "shared": held.owner == Owner::Shared,
        "verified": held.verified.map(verified),
        "path": held.path.to_string_lossy(),
    })
}

fn verified(verified: HashSource) -> &'static str {
    match verified {
        HashSource::Catalog => "catalog",
        HashSource::Hub => "hub",
    }
}
