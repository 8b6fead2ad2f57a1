//! Which adapters a request uses: by the name of its model, by llama.cpp's numbers, or none.

use std::sync::Arc;

use super::{Adapter, AdapterError};
use crate::error::{ApiError, ErrorKind};
use crate::field::{Field, FieldPath};
use crate::models::registry::RegistryState;
use crate::models::slot::Slot;
use crate::models::{Lease, Models, model_not_found};

/// What the name in a request means.
#[derive(Debug, Clone)]
pub struct ChosenModel {
    /// The model's configured name.
    pub model: String,
    pub adapter: Option<ChosenAdapter>,
}

#[derive(Debug, Clone)]
pub struct ChosenAdapter {
    adapter: Arc<Adapter>,
    /// By which it is listed.
    pub id: String,
}

impl ChosenModel {
    /// The adapter's name.
    pub fn adapter_name(&self) -> Option<&str> {
        let adapter = self.adapter.as_ref();
        adapter.map(|chosen| chosen.adapter.name.as_str())
    }

    /// The name by which it is listed.
    pub fn id(&self) -> &str {
        let adapter = self.adapter.as_ref();
        adapter.map_or(&self.model, |adapter| &adapter.id)
    }
}

/// Whether the caller may use a model, by its configured name.
pub type MaySee<'a> = &'a dyn Fn(&str) -> bool;

impl Models {
    /// What a name means to a caller: a model, or an adapter by its name or by `base:name`.
    pub fn choose(&self, name: &str, may_see: MaySee<'_>) -> Result<ChosenModel, ApiError> {
        self.inner.lock().choose(name, may_see)
    }

    /// Leases a model with the adapter that was chosen, or else with those that an operator set.
    pub async fn lease_chosen(&self, chosen: &ChosenModel) -> Result<Lease, ApiError> {
        let lease = self.lease(&chosen.model).await?;
        match &chosen.adapter {
            Some(ChosenAdapter { adapter, id }) => {
                let wanted = vec![(Arc::clone(adapter), adapter.config.scale)];
                let lease = lease.named(id).with_adapters(wanted).await;
                lease.map_err(|(_, error)| error.for_request(id).param(Field::Model))
            }
            None => {
                let defaults = self.default_adapters(&lease);
                if defaults.is_empty() {
                    return Ok(lease);
                }
                let lease = lease.with_adapters(defaults).await;
                lease.map_err(|(name, error)| error.for_request(&name))
            }
        }
    }

    fn default_adapters(&self, lease: &Lease) -> Vec<(Arc<Adapter>, f32)> {
        let mut state = self.inner.lock();
        let Some(slot) = state.slot(lease.slot()) else {
            return Vec::new();
        };
        let find = |(number, scale): &(usize, f32)| {
            let mut adapters = slot.adapters.iter();
            let adapter = adapters.find(|adapter| adapter.number == *number)?;
            Some((Arc::clone(adapter), *scale))
        };
        slot.default_adapters.iter().filter_map(find).collect()
    }

    /// The same lease with exactly these adapters, by llama.cpp's numbers. `field` is the list.
    pub async fn adapt(
        &self,
        lease: Lease,
        field: Field,
        scales: &[(usize, f32)],
    ) -> Result<Lease, ApiError> {
        let wanted = {
            let mut state = self.inner.lock();
            let slot = state.slot(lease.slot());
            let slot = slot.ok_or_else(|| ApiError::internal(&"a lease has no slot"))?;
            slot.by_number(FieldPath::from(field), scales)?
        };
        let adapted = lease.with_adapters(wanted).await;
        adapted
            .map_err(|(name, error): (String, AdapterError)| error.for_request(&name).param(field))
    }

    /// Sets the adapters of requests that choose none.
    pub fn set_default_adapters(
        &self,
        model: &str,
        field: FieldPath,
        scales: &[(usize, f32)],
    ) -> Result<(), ApiError> {
        let mut state = self.inner.lock();
        let slot = state.find(model)?;
        slot.by_number(field, scales)?;
        let set = scales.iter().filter(|(_, scale)| *scale != 0.0);
        slot.default_adapters = set.copied().collect();
        Ok(())
    }

    /// The name by which an adapter is listed.
    pub fn adapter_id(&self, model: &str, adapter: &str, may_see: MaySee<'_>) -> String {
        self.inner.lock().adapter_id(model, adapter, may_see)
    }
}

impl RegistryState {
    /// A name takes precedence over an alias, that over an adapter, and that over a pattern.
    fn choose(&self, name: &str, may_see: MaySee<'_>) -> Result<ChosenModel, ApiError> {
        let visible = || self.served().filter(|slot| may_see(&slot.model.name));
        let whole = |slot: &Slot| ChosenModel {
            model: slot.model.name.clone(),
            adapter: None,
        };
        let named = |name: &str| {
            let slot = self.served().find(|slot| slot.has_name(name));
            let slot = slot.or_else(|| self.served().find(|slot| slot.has_alias(name)));
            slot.filter(|slot| may_see(&slot.model.name))
        };
        if let Some(slot) = named(name) {
            return Ok(whole(slot));
        }
        if let Some((base, adapter)) = name.rsplit_once(':')
            && let Some(slot) = named(base)
            && slot.model.takes_adapters()
        {
            return match slot.adapter(adapter) {
                Some(adapter) => Ok(self.chosen(slot, adapter, may_see)),
                None => Err(slot.no_adapter(name)),
            };
        }
        let owners: Vec<_> = visible()
            .filter_map(|slot| Some((slot, slot.adapter(name)?)))
            .collect();
        match owners.as_slice() {
            [] => {}
            [(slot, adapter)] => return Ok(self.chosen(slot, adapter, may_see)),
            several => {
                let full = several.iter().map(|(slot, _)| full_name(slot, name));
                let full: Vec<_> = full.collect();
                let message = format!(
                    "Several models have an adapter `{name}`. Use one of: {}.",
                    full.join(", ")
                );
                let error = ApiError::new(ErrorKind::NotFound, message).param(Field::Model);
                return Err(error.code("model_not_found"));
            }
        }
        let pattern = self.served().find(|slot| slot.has_pattern(name));
        match pattern.filter(|slot| may_see(&slot.model.name)) {
            Some(slot) => Ok(whole(slot)),
            None => Err(model_not_found(name)),
        }
    }

    fn chosen(&self, slot: &Slot, adapter: &Arc<Adapter>, may_see: MaySee<'_>) -> ChosenModel {
        let model = slot.model.name.clone();
        let id = self.adapter_id(&model, &adapter.name, may_see);
        let adapter = Arc::clone(adapter);
        ChosenModel {
            model,
            adapter: Some(ChosenAdapter { adapter, id }),
        }
    }

    /// The adapter's name if it means nothing else to the caller, or `base:name`.
    fn adapter_id(&self, model: &str, adapter: &str, may_see: MaySee<'_>) -> String {
        let other = |slot: &Slot| {
            let is_model = slot.has_name(adapter) || slot.has_alias(adapter);
            let other = slot.model.name != model && may_see(&slot.model.name);
            is_model || (other && slot.adapter(adapter).is_some())
        };
        if self.served().any(other) {
            format!("{model}:{adapter}")
        } else {
            adapter.to_owned()
        }
    }
}

impl Slot {
    fn adapter(&self, name: &str) -> Option<&Arc<Adapter>> {
        self.adapters.iter().find(|adapter| adapter.name == name)
    }

    /// The adapters as `0 (name), 1 (other)`.
    fn numbered(&self) -> String {
        let adapters = self.adapters.iter();
        let list: Vec<_> = adapters
            .map(|adapter| format!("{} ({})", adapter.number, adapter.name))
            .collect();
        if list.is_empty() {
            "no adapters".to_owned()
        } else {
            list.join(", ")
        }
    }

    fn no_adapter(&self, name: &str) -> ApiError {
        let model = &self.model.name;
        let names: Vec<_> = self
            .adapters
            .iter()
            .map(|adapter| full_name(self, &adapter.name))
            .collect();
        let names = match names.as_slice() {
            [] => format!("The model `{model}` has no adapters"),
            names => format!("The model `{model}` has: {}", names.join(", ")),
        };
        let message = format!("Adapter `{name}` not found. {names}.");
        let error = ApiError::new(ErrorKind::NotFound, message).param(Field::Model);
        error.code("adapter_not_found")
    }

    fn by_number(
        &self,
        field: FieldPath,
        scales: &[(usize, f32)],
    ) -> Result<Vec<(Arc<Adapter>, f32)>, ApiError> {
        let most = loquat_session::AdapterLimits::PER_SEQUENCE;
        if scales.iter().filter(|(_, scale)| *scale != 0.0).count() > most {
            let problem = format!("may list {most} adapters at most");
            return Err(ApiError::invalid(field, problem));
        }
        let find = |(index, (number, scale)): (usize, &(usize, f32))| {
            let item = field.clone().index(index);
            if !scale.is_finite() {
                let problem = "must be a finite number";
                return Err(ApiError::invalid(item.field(Field::Scale), problem));
            }
            if scales[..index].iter().any(|(before, _)| before == number) {
                let problem = format!("names the adapter {number} again");
                return Err(ApiError::invalid(item.field(Field::Id), problem));
            }
            let mut adapters = self.adapters.iter();
            let adapter = adapters.find(|adapter| adapter.number == *number);
            match adapter {
                Some(adapter) => Ok((Arc::clone(adapter), *scale)),
                None => {
                    let (model, known) = (&self.model.name, self.numbered());
                    let problem = format!(
                        "is {number}, which is no adapter of the model `{model}`; it has {known}"
                    );
                    Err(ApiError::invalid(item.field(Field::Id), problem).code("adapter_not_found"))
                }
            }
        };
        scales.iter().enumerate().map(find).collect()
    }
}

fn full_name(slot: &Slot, adapter: &str) -> String {
    format!("{}:{adapter}", slot.model.name)
}
