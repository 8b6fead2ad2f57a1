//! What a reference means here and now: the one resolver, which needs no network.

use std::borrow::Cow;
use std::path::Path;

use crate::error::{Candidate, Candidates};
use crate::local::{self, LocalModel};
use crate::{Entry, FileKind, Form, HubReference, Reference, Store, StoreError, Wanted};

/// Where a reference leads.
#[derive(Debug, Clone)]
pub enum Resolved<'a> {
    /// A directory or model file that exists.
    Local(LocalModel),
    /// A form of an entry of the catalog, in the store or not.
    Catalog { entry: &'a Entry, form: &'a Form },
    /// A repository of the hub, in its cache or not.
    Hub(HubReference),
}

impl Store {
    /// What a reference means. What exists under that name as a path wins over a name of the
    /// catalog and a repository of the hub, if it is a model; `./name` is the path alone.
    pub fn resolve(&self, wanted: &Wanted<'_>) -> Result<Resolved<'_>, StoreError> {
        let Wanted { reference, kind } = *wanted;
        let path = expand(reference);
        if path.exists() {
            let found = local::examine(&path, kind);
            let not_a_model = matches!(found, Err(StoreError::NotAModel { .. }));
            return match (self.catalog.find(reference), Reference::parse(reference)) {
                (Some(entry), _) if not_a_model => self.catalog_form(entry, kind),
                (None, Ok(Reference::Hub(hub))) if not_a_model => Ok(Resolved::Hub(hub)),
                _ => found.map(Resolved::Local),
            };
        }
        match Reference::parse(reference)? {
            Reference::Path(_) => Err(StoreError::PathMissing {
                path: path.into_owned(),
            }),
            Reference::Name(name) => match self.catalog.find(&name) {
                Some(entry) => self.catalog_form(entry, kind),
                None => Err(self.unknown(&name)),
            },
            Reference::Hub(reference) => Ok(Resolved::Hub(reference)),
        }
    }

    fn catalog_form<'s>(
        &self,
        entry: &'s Entry,
        kind: Option<FileKind>,
    ) -> Result<Resolved<'s>, StoreError> {
        let form = match kind {
            Some(kind) => entry.form(kind),
            None => entry.usual_form(),
        };
        match (form, kind) {
            (Some(form), _) => Ok(Resolved::Catalog { entry, form }),
            (None, kind) => Err(StoreError::NoSuchPart {
                reference: entry.to_string(),
                wanted: kind.map_or("form", FileKind::name).to_owned(),
                candidates: forms_of(entry),
            }),
        }
    }

    fn unknown(&self, name: &str) -> StoreError {
        let advice = match self.catalog.suggest(name).as_slice() {
            [] => format!("the default is {}", self.default_model()),
            [one] => format!("did you mean {one}?"),
            several => format!("did you mean one of {}?", several.join(", ")),
        };
        StoreError::UnknownModel {
            reference: name.to_owned(),
            advice,
        }
    }
}

fn forms_of(entry: &Entry) -> Candidates {
    let candidates = entry.forms.iter().map(|form| Candidate {
        kind: form.kind,
        quant: Some(form.quant.clone()),
        bytes: form.bytes,
        say: format!("{entry} {}", form.kind.flag()),
    });
    Candidates(candidates.collect())
}

/// `~` is the home directory in a configuration too, where no shell says so.
fn expand(reference: &str) -> Cow<'_, Path> {
    let in_home = reference.strip_prefix("~/");
    match (in_home, etcetera::home_dir()) {
        (Some(rest), Ok(home)) => Cow::Owned(home.join(rest)),
        _ => Cow::Borrowed(Path::new(reference)),
    }
}
