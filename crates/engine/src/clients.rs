//! Tracks tokens per client, so that clients of one priority get equal shares.

use std::collections::HashMap;
use std::sync::Arc;

/// Idle clients to remember.
const MAX_IDLE: usize = 1024;

/// The most tokens by which a returning client may be ahead. Without a bound, newcomers could
/// starve it.
const MAX_LEAD: u64 = 16_384;

type Name = Option<Arc<str>>;

#[derive(Debug, Default)]
pub(crate) struct Clients {
    by_name: HashMap<Name, Client>,
    /// Clients that have requests.
    busy: usize,
    /// Tokens a client present all the time would have received. Newcomers start here, so they
    /// cannot starve others.
    level: f64,
}

#[derive(Debug, Default)]
struct Client {
    requests: usize,
    /// Tokens computed for it, including a newcomer's start level.
    served: u64,
}

impl Clients {
    /// Records an arrival. A returning client gets no credit for its absence: it starts at the
    /// current level.
    pub fn arrive(&mut self, name: &Name) {
        let level = self.level as u64;
        let client = self.by_name.entry(name.clone()).or_default();
        if client.requests == 0 {
            client.served = client.served.clamp(level, level + MAX_LEAD);
            self.busy += 1;
        }
        client.requests += 1;
    }

    /// Records the end of a request.
    pub fn leave(&mut self, name: &Name) {
        if let Some(client) = self.by_name.get_mut(name) {
            self.busy -= usize::from(client.requests == 1);
            client.requests = client.requests.saturating_sub(1);
        }
        if self.by_name.len() > MAX_IDLE {
            self.by_name.retain(|_, client| client.requests > 0);
        }
    }

    pub fn serve(&mut self, name: &Name, tokens: usize) {
        if let Some(client) = self.by_name.get_mut(name) {
            client.served += tokens as u64;
            self.level += tokens as f64 / self.busy.max(1) as f64;
        }
    }

    pub fn served(&self, name: &Name) -> u64 {
        self.by_name.get(name).map_or(0, |client| client.served)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newcomers_start_at_current_level() {
        let [a, b, c] = ["a", "b", "c"].map(|name| Some(Arc::from(name)));
        let mut clients = Clients::default();
        clients.arrive(&a);
        clients.serve(&a, 100);
        clients.arrive(&b);
        assert_eq!(clients.served(&b), 100, "level with the only one there");
        clients.serve(&a, 50);
        clients.arrive(&c);
        assert_eq!(clients.served(&c), 125, "between a and b");
        clients.leave(&a);
        clients.arrive(&a);
        assert_eq!(clients.served(&a), 150, "leaving forgives nothing");
        clients.leave(&c);
        clients.serve(&b, 500);
        clients.leave(&a);
        clients.arrive(&c);
        assert_eq!(clients.served(&c), 375, "being away earns nothing");
        clients.arrive(&a);
        clients.serve(&a, 10 * MAX_LEAD as usize);
        clients.leave(&a);
        clients.arrive(&a);
        let level = clients.level as u64;
        assert_eq!(clients.served(&a), level + MAX_LEAD, "but not forever");
    }

    #[test]
    fn idle_clients_are_forgotten() {
        let mut clients = Clients::default();
        clients.arrive(&None);
        clients.serve(&None, 7);
        for i in 0..3 * MAX_IDLE {
            let name = Some(Arc::from(i.to_string()));
            clients.arrive(&name);
            clients.leave(&name);
        }
        assert!(clients.by_name.len() <= MAX_IDLE + 1);
        assert_eq!(clients.served(&None), 7);
    }
}
