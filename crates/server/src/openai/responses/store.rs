//! Responses that are kept in memory, for turns that go on from them.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::item::Item;
use super::object::ResponseObject;
use crate::config;

/// What is kept, by the key that made it.
#[derive(Default)]
pub struct Responses(Mutex<Owners>);

type Owners = BTreeMap<Option<String>, Owned>;

/// One key's.
#[derive(Default)]
struct Owned {
    /// By age, the oldest first.
    kept: BTreeMap<u64, Kept>,
    places: HashMap<String, u64>,
    next: u64,
    /// Of every turn that something kept, or that is in use.
    bytes: Arc<AtomicUsize>,
}

/// A response and the turns before it.
#[derive(Clone)]
pub struct Kept {
    since: Instant,
    /// The last one is the response's own. Conversations share the turns that they have in common.
    turns: Vec<Arc<Turn>>,
}

/// What was asked and what was answered.
pub struct Turn {
    pub input: Vec<Item>,
    pub response: ResponseObject,
    size: usize,
    bytes: Arc<AtomicUsize>,
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.bytes.fetch_sub(self.size, Ordering::Relaxed);
    }
}

impl Kept {
    pub fn response(&self) -> Option<&ResponseObject> {
        self.turns.last().map(|turn| &turn.response)
    }

    /// All that the model was given, and its answer.
    pub fn conversation(&self) -> impl Iterator<Item = &Item> {
        let turns = self.turns.iter();
        turns.flat_map(|turn| turn.input.iter().chain(&turn.response.output))
    }

    /// All that the model was given.
    pub fn input(&self) -> impl Iterator<Item = &Item> {
        let answer = self.response().map_or(0, |response| response.output.len());
        let all = self.conversation().count();
        self.conversation().take(all - answer)
    }
}

impl Responses {
    /// Keeps a response, unless it is too much by itself, and lets go of what is too old or too
    /// much.
    pub fn keep(
        &self,
        owner: Option<String>,
        before: Option<Kept>,
        input: Vec<Item>,
        response: ResponseObject,
        limits: &config::Responses,
    ) {
        let input: Vec<_> = input.into_iter().map(Item::without_idle_fields).collect();
        let size = size(&input, &response);
        let id = response.id.clone();
        let mut turns = before.map_or_else(Vec::new, |before| before.turns);
        let whole = turns.iter().map(|turn| turn.size).sum::<usize>() + size;
        if whole > limits.max_bytes {
            return;
        }
        let mut owners = self.lock();
        let owned = owners.entry(owner).or_default();
        owned.bytes.fetch_add(size, Ordering::Relaxed);
        turns.push(Arc::new(Turn {
            input,
            response,
            size,
            bytes: Arc::clone(&owned.bytes),
        }));
        owned.add(
            id,
            Kept {
                since: Instant::now(),
                turns,
            },
        );
        bound(&mut owners, limits);
    }

    pub fn get(
        &self,
        owner: &Option<String>,
        id: &str,
        limits: &config::Responses,
    ) -> Option<Kept> {
        let owners = self.bounded(limits);
        let owned = owners.get(owner)?;
        owned.kept.get(owned.places.get(id)?).cloned()
    }

    /// Whether there was anything to forget.
    pub fn forget(&self, owner: &Option<String>, id: &str, limits: &config::Responses) -> bool {
        let mut owners = self.bounded(limits);
        owners.get_mut(owner).is_some_and(|owned| owned.forget(id))
    }

    /// Items of any of the owner's responses by their ids, each from the newest that has it.
    pub fn items(
        &self,
        owner: &Option<String>,
        ids: &HashSet<String>,
        limits: &config::Responses,
    ) -> HashMap<String, Item> {
        let turns = match self.bounded(limits).get(owner) {
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

    /// Without what should be gone.
    fn bounded(&self, limits: &config::Responses) -> MutexGuard<'_, Owners> {
        let mut owners = self.lock();
        bound(&mut owners, limits);
        owners
    }

    fn lock(&self) -> MutexGuard<'_, Owners> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Lets go of what is too old, and where it is too much, of the oldest of who has most: nobody's
/// responses make room for somebody else's who keeps more.
fn bound(owners: &mut Owners, limits: &config::Responses) {
    let config::Responses {
        max_stored,
        max_bytes,
        keep,
    } = limits;
    for owned in owners.values_mut() {
        while owned.oldest().is_some_and(|since| since.elapsed() > *keep) {
            owned.forget_oldest();
        }
    }
    loop {
        let sum = |of: fn(&Owned) -> usize| owners.values().map(of).sum::<usize>();
        let share = match (
            sum(Owned::bytes) > *max_bytes,
            sum(Owned::count) > *max_stored,
        ) {
            (true, _) => Owned::bytes,
            (false, true) => Owned::count,
            (false, false) => break,
        };
        let largest = owners.values_mut();
        let largest = largest.max_by_key(|owned| (share(owned), Reverse(owned.oldest())));
        // What is merely in use cannot be let go of.
        if !largest.is_some_and(Owned::forget_oldest) {
            break;
        }
    }
    owners.retain(|_, owned| owned.count() > 0 || owned.bytes() > 0);
}

impl Owned {
    fn add(&mut self, id: String, kept: Kept) {
        self.kept.insert(self.next, kept);
        self.places.insert(id, self.next);
        self.next += 1;
    }

    fn forget(&mut self, id: &str) -> bool {
        let place = self.places.remove(id);
        place.is_some_and(|place| self.kept.remove(&place).is_some())
    }

    /// Whether there was one.
    fn forget_oldest(&mut self) -> bool {
        let Some((_, gone)) = self.kept.pop_first() else {
            return false;
        };
        if let Some(response) = gone.response() {
            self.places.remove(&response.id);
        }
        true
    }

    fn count(&self) -> usize {
        self.kept.len()
    }

    fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    fn oldest(&self) -> Option<Instant> {
        self.kept.values().next().map(|kept| kept.since)
    }

    /// Each once, the newest response's last turn first.
    fn turns(&self) -> Vec<Arc<Turn>> {
        let mut seen = HashSet::new();
        let mut turns = Vec::new();
        for kept in self.kept.values().rev() {
            // What comes before a turn is the same in every conversation that has it.
            let new = kept.turns.iter().rev();
            let new = new.take_while(|turn| seen.insert(Arc::as_ptr(turn)));
            turns.extend(new.cloned());
        }
        turns
    }
}

/// The words as JSON, and what holds them.
fn size(input: &[Item], response: &ResponseObject) -> usize {
    let json = serde_json::to_vec(&(input, response));
    let items = input.len() + response.output.len();
    json.map_or(0, |json| json.len()) + items * size_of::<Item>() + size_of::<Turn>()
}
