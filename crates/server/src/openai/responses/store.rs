//! Stored responses, in memory, for requests that continue them.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::item::Item;
use super::object::ResponseObject;
use crate::config;

/// Stored responses, by the key that created them.
#[derive(Default)]
pub struct Responses(Mutex<Owners>);

type Owners = BTreeMap<Option<String>, OwnerResponses>;

/// The responses of one key.
#[derive(Default)]
struct OwnerResponses {
    /// The oldest first.
    by_age: BTreeMap<u64, StoredResponse>,
    ages: HashMap<String, u64>,
    next: u64,
    /// Of every turn that is stored or in use.
    bytes: Arc<AtomicUsize>,
}

/// A response and the turns before it.
#[derive(Clone)]
pub struct StoredResponse {
    since: Instant,
    /// The response's own turn is the last. Conversations share their common turns.
    turns: Vec<Arc<StoredTurn>>,
}

/// A request's input and its response.
pub struct StoredTurn {
    pub input: Vec<Item>,
    pub response: ResponseObject,
    size: usize,
    bytes: Arc<AtomicUsize>,
}

impl Drop for StoredTurn {
    fn drop(&mut self) {
        self.bytes.fetch_sub(self.size, Ordering::Relaxed);
    }
}

impl StoredResponse {
    pub fn response(&self) -> Option<&ResponseObject> {
        self.turns.last().map(|turn| &turn.response)
    }

    /// Everything that the model saw, and its answer.
    pub fn conversation(&self) -> impl Iterator<Item = &Item> {
        let turns = self.turns.iter();
        turns.flat_map(|turn| turn.input.iter().chain(&turn.response.output))
    }

    /// Everything that the model saw.
    pub fn input(&self) -> impl Iterator<Item = &Item> {
        let answer = self.response().map_or(0, |response| response.output.len());
        let all = self.conversation().count();
        self.conversation().take(all - answer)
    }
}

impl Responses {
    /// Stores a response, unless it exceeds the limit by itself, and evicts what is too old or too
    /// much.
    pub fn insert(
        &self,
        owner: Option<String>,
        previous: Option<StoredResponse>,
        input: Vec<Item>,
        response: ResponseObject,
        limits: &config::Responses,
    ) {
        let input: Vec<_> = input
            .into_iter()
            .map(Item::without_ignored_fields)
            .collect();
        let size = size(&input, &response);
        let id = response.id.clone();
        let mut turns = previous.map_or_else(Vec::new, |previous| previous.turns);
        let total = turns.iter().map(|turn| turn.size).sum::<usize>() + size;
        if total > limits.max_bytes {
            return;
        }
        let mut owners = self.lock();
        let owned = owners.entry(owner).or_default();
        owned.bytes.fetch_add(size, Ordering::Relaxed);
        turns.push(Arc::new(StoredTurn {
            input,
            response,
            size,
            bytes: Arc::clone(&owned.bytes),
        }));
        owned.add(
            id,
            StoredResponse {
                since: Instant::now(),
                turns,
            },
        );
        evict(&mut owners, limits);
    }

    pub fn get(
        &self,
        owner: &Option<String>,
        id: &str,
        limits: &config::Responses,
    ) -> Option<StoredResponse> {
        let owners = self.current(limits);
        let owned = owners.get(owner)?;
        owned.by_age.get(owned.ages.get(id)?).cloned()
    }

    /// Whether the response existed.
    pub fn remove(&self, owner: &Option<String>, id: &str, limits: &config::Responses) -> bool {
        let mut owners = self.current(limits);
        owners.get_mut(owner).is_some_and(|owned| owned.remove(id))
    }

    /// Items of the owner's responses by their ids, each from the newest response that has it.
    pub fn items(
        &self,
        owner: &Option<String>,
        ids: &HashSet<String>,
        limits: &config::Responses,
    ) -> HashMap<String, Item> {
        let turns = match self.current(limits).get(owner) {
            Some(owned) => owned.turns(),
            None => Vec::new(),
        };
        let mut found = HashMap::new();
        let newest = turns.iter();
        let all = newest.flat_map(|turn| turn.response.output.iter().chain(&turn.input));
        for item in all {
            if let Some(id) = item.id().filter(|id| ids.contains(*id)) {
                found.entry(id.to_owned()).or_insert_with(|| item.clone());
            }
            if found.len() == ids.len() {
                break;
            }
        }
        found
    }

    /// The responses that have not expired.
    fn current(&self, limits: &config::Responses) -> MutexGuard<'_, Owners> {
        let mut owners = self.lock();
        evict(&mut owners, limits);
        owners
    }

    fn lock(&self) -> MutexGuard<'_, Owners> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Evicts expired responses. Over the limits, it evicts the oldest of the owner with the most, so
/// that a small owner never makes room for a large one.
fn evict(owners: &mut Owners, limits: &config::Responses) {
    let config::Responses {
        max_stored,
        max_bytes,
        keep,
    } = limits;
    for owned in owners.values_mut() {
        while owned.oldest().is_some_and(|since| since.elapsed() > *keep) {
            owned.remove_oldest();
        }
    }
    loop {
        let sum = |of: fn(&OwnerResponses) -> usize| owners.values().map(of).sum::<usize>();
        let share = match (
            sum(OwnerResponses::bytes) > *max_bytes,
            sum(OwnerResponses::count) > *max_stored,
        ) {
            (true, _) => OwnerResponses::bytes,
            (false, true) => OwnerResponses::count,
            (false, false) => break,
        };
        let largest = owners.values_mut();
        let largest = largest.max_by_key(|owned| (share(owned), Reverse(owned.oldest())));
        // Turns that are only in use cannot be evicted.
        if !largest.is_some_and(OwnerResponses::remove_oldest) {
            break;
        }
    }
    owners.retain(|_, owned| owned.count() > 0 || owned.bytes() > 0);
}

impl OwnerResponses {
    fn add(&mut self, id: String, response: StoredResponse) {
        self.by_age.insert(self.next, response);
        self.ages.insert(id, self.next);
        self.next += 1;
    }

    fn remove(&mut self, id: &str) -> bool {
        let age = self.ages.remove(id);
        age.is_some_and(|age| self.by_age.remove(&age).is_some())
    }

    /// Whether there was one.
    fn remove_oldest(&mut self) -> bool {
        let Some((_, oldest)) = self.by_age.pop_first() else {
            return false;
        };
        if let Some(response) = oldest.response() {
            self.ages.remove(&response.id);
        }
        true
    }

    fn count(&self) -> usize {
        self.by_age.len()
    }

    fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    fn oldest(&self) -> Option<Instant> {
        self.by_age.values().next().map(|oldest| oldest.since)
    }

    /// Each turn once, the newest response's last turn first.
    fn turns(&self) -> Vec<Arc<StoredTurn>> {
        let mut seen = HashSet::new();
        let mut turns = Vec::new();
        for response in self.by_age.values().rev() {
            // The turns before a turn are the same in every conversation.
            let new = response.turns.iter().rev();
            let new = new.take_while(|turn| seen.insert(Arc::as_ptr(turn)));
            turns.extend(new.cloned());
        }
        turns
    }
}

/// The size of the turn as JSON, and of its structs.
fn size(input: &[Item], response: &ResponseObject) -> usize {
    let json = serde_json::to_vec(&(input, response));
    let items = input.len() + response.output.len();
    json.map_or(0, |json| json.len()) + items * size_of::<Item>() + size_of::<StoredTurn>()
}
