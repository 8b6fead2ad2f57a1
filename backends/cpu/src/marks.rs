//! A set of small numbers, to count what many share only once.

/// One bit for each number below a limit, so that counting a few hundred sequences' pages at
/// every admission costs little beside a step.
pub struct Marks(Vec<u64>);

impl Marks {
    pub fn new(limit: usize) -> Self {
        Self(vec![0; limit.div_ceil(64)])
    }

    pub fn mark(&mut self, number: usize) {
        self.0[number / 64] |= 1 << (number % 64);
    }

    pub fn count(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_counts_once() {
        let mut marks = Marks::new(130);
        assert_eq!(marks.count(), 0);
        for number in [0, 63, 64, 129, 64, 0] {
            marks.mark(number);
        }
        assert_eq!(marks.count(), 4);
    }
}
