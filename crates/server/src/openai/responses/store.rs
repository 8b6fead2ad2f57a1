//! Responses that are kept in memory, for turns that go on from them.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::item::Item;
use super::object::ResponseObject;
use crate::config;

/// What is kept, each response for the key that made it.
#[derive(Default)]
pub struct Responses {
    inner: Mutex<Inner>,
    /// Of every turn that something kept, or that is in use.
    bytes: Arc<AtomicUsize>,
}

#[derive(Default)]
struct Inner {
    /// By age, the oldest first.
    kept: BTreeMap<u64, Kept>,
    places: HashMap<String, u64>,
    next: u64,
}

/// A response and the turns before it.
#[derive(Clone)]
pub struct Kept {
    owner: Option<String>,
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
    /// Keeps a response, and lets go of what is too old or too much, oldest first.
    pub fn keep(
        &self,
        owner: Option<String>,
        before: Option<Kept>,
        input: Vec<Item>,
        response: ResponseObject,
        limits: &config::Responses,
    ) {
        let size = size(&input, &response);
        self.bytes.fetch_add(size, Ordering::Relaxed);
        let id = response.id.clone();
        let mut turns = before.map_or_else(Vec::new, |before| before.turns);
        turns.push(Arc::new(Turn {
            input,
            response,
            size,
            bytes: Arc::clone(&self.bytes),
        }));
        let kept = Kept {
            owner,
            since: Instant::now(),
            turns,
        };
        let mut inner = self.lock();
        let place = inner.next;
        inner.next += 1;
        inner.kept.insert(place, kept);
        inner.places.insert(id, place);
        self.bound(&mut inner, limits);
    }

    pub fn get(&self, owner: Option<&str>, id: &str, limits: &config::Responses) -> Option<Kept> {
        let mut inner = self.lock();
        self.bound(&mut inner, limits);
        let kept = inner.kept.get(inner.places.get(id)?)?;
        (kept.owner.as_deref() == owner).then(|| kept.clone())
    }

    /// Whether there was anything to forget.
    pub fn forget(&self, owner: Option<&str>, id: &str, limits: &config::Responses) -> bool {
        let mut inner = self.lock();
        self.bound(&mut inner, limits);
        let place = inner.places.get(id).copied();
        let own = |place: &u64| inner.kept[place].owner.as_deref() == owner;
        let Some(place) = place.filter(own) else {
            return false;
        };
        inner.places.remove(id);
        inner.kept.remove(&place).is_some()
    }

    /// An item of any of the owner's responses, newest first.
    pub fn item(&self, owner: Option<&str>, id: &str) -> Option<Item> {
        let inner = self.lock();
        let own = inner.kept.values().rev();
        let mut own = own.filter(|kept| kept.owner.as_deref() == owner);
        own.find_map(|kept| {
            let mut items = kept.conversation();
            items.find(|item| item.id() == Some(id)).cloned()
        })
    }

    fn bound(&self, inner: &mut Inner, limits: &config::Responses) {
        let config::Responses {
            max_stored,
            max_bytes,
            keep,
        } = limits;
        while let Some(oldest) = inner.kept.first_entry() {
            let bytes = self.bytes.load(Ordering::Relaxed);
            let is_old = oldest.get().since.elapsed() > *keep;
            if !is_old && inner.places.len() <= *max_stored && bytes <= *max_bytes {
                break;
            }
            let gone = oldest.remove();
            if let Some(response) = gone.response() {
                inner.places.remove(&response.id);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The words as JSON, and what holds them.
fn size(input: &[Item], response: &ResponseObject) -> usize {
    let json = serde_json::to_vec(&(input, response));
    let items = input.len() + response.output.len();
    json.map_or(0, |json| json.len()) + items * size_of::<Item>() + size_of::<Turn>()
}
