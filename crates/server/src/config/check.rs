//! What is wrong with a configuration although each of its values is right.

use std::collections::HashMap;

use super::mistakes::Mistake;
use super::said::{Entry, Origins};
use super::{Config, Key, Model, Scope};

/// All of it. `in_file` are the names of the file's models, whether or not they are served.
pub fn all(
    config: &Config,
    origins: &Origins,
    keys: &[Entry<Key>],
    models: &[Entry<Model>],
    in_file: &[String],
) -> Vec<Mistake> {
    let mut mistakes: Vec<_> = tls(config, origins).into_iter().collect();
    mistakes.extend(names(models));
    mistakes.extend(key_names(keys));
    mistakes.extend(keys.iter().filter_map(scopes));
    mistakes.extend(keys.iter().flat_map(|key| of_models(key, models, in_file)));
    mistakes
}

/// One file of the two is a mistake.
fn tls(config: &Config, origins: &Origins) -> Option<Mistake> {
    let tls = config.tls.as_ref()?;
    let said = origins.sections.get("tls")?;
    let names = ["certificate", "private_key"];
    let paths = [&tls.certificate, &tls.private_key];
    let missing = paths.map(|path| path.as_os_str().is_empty());
    let missing = missing.iter().position(|missing| *missing)?;
    let (missing, given) = (names[missing], names[1 - missing]);
    Some(Mistake {
        place: said.of(given)?.clone(),
        message: format!("`tls.{given}` needs `tls.{missing}` beside it"),
    })
}

/// Names of models, and what else they are called, are for one each.
fn names(models: &[Entry<Model>]) -> Vec<Mistake> {
    let mut taken: HashMap<&str, &str> = HashMap::new();
    let mut mistakes = Vec::new();
    let named = models.iter().filter(|model| !model.value.name.is_empty());
    for model in named.clone() {
        let name = &model.value.name;
        if taken.insert(name, name).is_some() {
            mistakes.push(Mistake {
                place: model.place("name"),
                message: format!("another model is called `{name}` already"),
            });
        }
    }
    for model in named {
        for alias in &model.value.aliases {
            if let Some(owner) = taken.insert(alias, &model.value.name) {
                mistakes.push(Mistake {
                    place: model.place("aliases"),
                    message: format!("the alias `{alias}` is taken: the model `{owner}` has it"),
                });
            }
        }
    }
    mistakes
}

fn key_names(keys: &[Entry<Key>]) -> Vec<Mistake> {
    let mut mistakes = Vec::new();
    for (index, key) in keys.iter().enumerate() {
        let before = &keys[..index];
        let name = &key.value.name;
        let same_name = before.iter().any(|other| other.value.name == *name);
        if same_name && !name.is_empty() {
            mistakes.push(Mistake {
                place: key.place("name"),
                message: format!("another key is called `{name}` already"),
            });
        }
        let twin = before
            .iter()
            .find(|other| other.value.hash == key.value.hash && key.said.of("hash").is_some());
        if let Some(twin) = twin {
            mistakes.push(Mistake {
                place: key.place("hash"),
                message: format!("the key `{}` has the same hash", twin.value.name),
            });
        }
    }
    mistakes
}

/// A key that may do nothing is not a key.
fn scopes(key: &Entry<Key>) -> Option<Mistake> {
    key.value.scopes.is_empty().then(|| Mistake {
        place: key.place("scopes"),
        message: "a key without scopes may do nothing; name some, or leave `scopes` out".to_owned(),
    })
}

fn of_models(key: &Entry<Key>, models: &[Entry<Model>], in_file: &[String]) -> Vec<Mistake> {
    let is_known = |name: &&String| {
        in_file.contains(name) || models.iter().any(|model| model.value.name == **name)
    };
    let wanted = key.value.models.iter().flatten();
    let unknown = wanted.filter(|name| !is_known(name));
    unknown
        .map(|name| Mistake {
            place: key.place("models"),
            message: format!("no model is called `{name}`"),
        })
        .collect()
}

impl Config {
    /// What is allowed, but perhaps not meant.
    pub fn doubts(&self) -> Vec<String> {
        let mut doubts = Vec::new();
        let is_open = self.keys.is_empty();
        if is_open && !self.server.host.is_loopback() {
            doubts.push(format!(
                "everybody who reaches {} may use this server, as there are no [[keys]]",
                self.server.host
            ));
        }
        let is_admin = |key: &Key| key.scopes.contains(&Scope::Admin);
        if !is_open && !self.keys.iter().any(is_admin) {
            doubts
                .push("no key has the scope \"admin\", so nobody may use the admin API".to_owned());
        }
        if self.tls.is_none() && !is_open && !self.server.host.is_loopback() {
            doubts.push("keys travel unencrypted, as there is no [tls]".to_owned());
        }
        doubts
    }
}
