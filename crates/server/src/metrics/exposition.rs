//! Families built at each scrape.

use prometheus::proto::{Counter, Gauge, LabelPair, Metric, MetricFamily, MetricType};

/// A family under construction.
pub struct Family(MetricFamily);

impl Family {
    pub fn gauge(name: &str, help: &str) -> Self {
        Self::new(name, help, MetricType::GAUGE)
    }

    pub fn counter(name: &str, help: &str) -> Self {
        Self::new(name, help, MetricType::COUNTER)
    }

    fn new(name: &str, help: &str, kind: MetricType) -> Self {
        let mut family = MetricFamily::default();
        family.set_name(name.to_owned());
        family.set_help(help.to_owned());
        family.set_field_type(kind);
        Self(family)
    }

    pub fn add(&mut self, labels: &[(&str, &str)], value: f64) {
        let labels = labels.iter().map(|(name, value)| {
            let mut label = LabelPair::default();
            label.set_name((*name).to_owned());
            label.set_value((*value).to_owned());
            label
        });
        let mut metric = Metric::from_label(labels.collect());
        match self.0.get_field_type() {
            MetricType::COUNTER => {
                let mut counter = Counter::default();
                counter.set_value(value);
                metric.set_counter(counter);
            }
            _ => {
                let mut gauge = Gauge::default();
                gauge.set_value(value);
                metric.set_gauge(gauge);
            }
        }
        self.0.mut_metric().push(metric);
    }

    pub fn with(mut self, labels: &[(&str, &str)], value: f64) -> Self {
        self.add(labels, value);
        self
    }

    /// `None` without samples: the text format has no empty families.
    pub fn finish(self) -> Option<MetricFamily> {
        (!self.0.get_metric().is_empty()).then_some(self.0)
    }
}

/// The same samples under another name.
pub fn renamed(family: &MetricFamily, name: &str) -> MetricFamily {
    let mut renamed = family.clone();
    renamed.set_name(name.to_owned());
    renamed
}
