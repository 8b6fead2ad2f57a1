/// Numbered places, each counted by its holders and used again when nobody holds it.
pub struct Pool {
    capacity: usize,
    holders: Vec<u32>,
    free: Vec<Place>,
}

pub type Place = u32;

impl Pool {
    pub fn new(capacity: usize) -> Self {
        Self {
            capacity,
            holders: Vec::new(),
            free: Vec::new(),
        }
    }

    pub fn capacity(&self) -> usize {
        self.capacity
    }

    pub fn in_use(&self) -> usize {
        self.holders.len() - self.free.len()
    }

    pub fn available(&self) -> usize {
        self.capacity - self.in_use()
    }

    /// A place for its taker alone.
    pub fn take(&mut self) -> Option<Place> {
        if self.available() == 0 {
            return None;
        }
        let place = self.free.pop().unwrap_or_else(|| {
            self.holders.push(0);
            self.holders.len() as Place - 1
        });
        self.holders[place as usize] = 1;
        Some(place)
    }

    pub fn hold(&mut self, place: Place) {
        self.holders[place as usize] += 1;
    }

    pub fn drop_hold(&mut self, place: Place) {
        let holders = &mut self.holders[place as usize];
        *holders -= 1;
        if *holders == 0 {
            self.free.push(place);
        }
    }

    pub fn is_shared(&self, place: Place) -> bool {
        self.holders[place as usize] > 1
    }

    /// How many places these are, each counted once.
    pub fn distinct(&self, places: impl Iterator<Item = Place>) -> usize {
        let mut seen = vec![false; self.holders.len()];
        places
            .filter(|place| !std::mem::replace(&mut seen[*place as usize], true))
            .count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_comes_back_with_its_last_holder() {
        let mut pool = Pool::new(2);
        let [a, b] = std::array::from_fn(|_| pool.take().unwrap());
        assert_eq!(pool.take(), None);
        pool.hold(a);
        assert!(pool.is_shared(a) && !pool.is_shared(b));
        pool.drop_hold(a);
        assert_eq!((pool.in_use(), pool.available()), (2, 0));
        pool.drop_hold(a);
        assert_eq!((pool.in_use(), pool.available()), (1, 1));
        assert_eq!(pool.take(), Some(a));
        assert_eq!(pool.distinct([a, b, a].into_iter()), 2);
    }
}
