//! What every tenant should get: rates that no scheduler made.
//!
//! On each OSD what it can do is divided by weight among the tenants that ask, no tenant gets more
//! than it asks for, and floors come first. A tenant's floor is divided over OSDs in proportion to
//! what it asks for; its ceiling in proportion to what it would get there without one, and what it
//! leaves, others get. That depends on what others get, so it is done again until nothing changes.

/// What a tenant asks an OSD for.
#[derive(Clone, Copy, Debug)]
pub struct Want {
    /// Where.
    pub osd: usize,
    /// The tenant.
    pub tenant: usize,
    /// Operations each second.
    pub rate: f64,
    /// Of each.
    pub cost: f64,
    /// Share.
    pub weight: f64,
}

/// Computes the rates that tenants should get from what they ask for and what OSDs can do.
pub struct Fair<'a> {
    wants: Vec<Want>,
    can: &'a [f64],
    /// Floor and ceiling of tenants, in operations each second; 0 for none.
    promises: &'a [(f64, f64)],
    /// Of an OSD, places in `wants`.
    of_osd: Vec<Vec<usize>>,
}

const ROUNDS: usize = 60;

impl<'a> Fair<'a> {
    /// Of these.
    pub fn new(wants: Vec<Want>, can: &'a [f64], promises: &'a [(f64, f64)]) -> Self {
        let mut of_osd = vec![Vec::new(); can.len()];
        for (at, w) in wants.iter().enumerate() {
            of_osd[w.osd].push(at);
        }
        Fair { wants, can, promises, of_osd }
    }

    /// Divides what an OSD can do: no tenant below `least` or above `most`, else by weight. In
    /// cost each second.
    fn pour(&self, osd: usize, least: &[f64], most: &[f64], out: &mut [f64]) {
        let who = &self.of_osd[osd];
        let can = self.can[osd];
        let floors: f64 = who.iter().map(|i| least[*i]).sum();
        if floors >= can {
            // They do not fit together, and fall behind alike.
            who.iter().for_each(|i| out[*i] = least[*i] * can / floors);
            return;
        }
        let level = |height: f64| -> f64 {
            who.iter().map(|i| (height * self.wants[*i].weight).clamp(least[*i], most[*i])).sum()
        };
        let (mut low, mut high) = (0.0, can);
        if level(high) > can {
            for _ in 0..60 {
                let middle = (low + high) / 2.0;
                if level(middle) > can { high = middle } else { low = middle }
            }
        } else {
            low = high;
        }
        who.iter().for_each(|i| out[*i] = (low * self.wants[*i].weight).clamp(least[*i], most[*i]));
    }

    /// Operations each second for each want.
    pub fn rates(&self) -> Vec<f64> {
        let n = self.wants.len();
        let asked: Vec<f64> = self.wants.iter().map(|w| w.rate * w.cost).collect();
        let mut all = vec![0.0; self.promises.len()];
        for w in &self.wants {
            all[w.tenant] += w.rate;
        }
        let floors = self
            .wants
            .iter()
            .map(|w| (self.promises[w.tenant].0 * w.rate / all[w.tenant]).min(w.rate) * w.cost);
        let floors: Vec<f64> = floors.collect();
        let (mut least, mut most) = (floors.clone(), asked.clone());
        let mut got = vec![0.0; n];
        for _ in 0..ROUNDS {
            for osd in 0..self.can.len() {
                self.pour(osd, &least, &most, &mut got);
            }
            let mut sum = vec![0.0; self.promises.len()];
            for (w, got) in self.wants.iter().zip(&got) {
                sum[w.tenant] += got / w.cost;
            }
            for (i, w) in self.wants.iter().enumerate() {
                let ceiling = self.promises[w.tenant].1;
                let sum = sum[w.tenant];
                if ceiling > 0.0 && sum > 0.0 {
                    // Towards the ceiling, from either side.
                    most[i] = (most[i] * (ceiling / sum).clamp(0.8, 1.1)).min(asked[i]);
                }
                least[i] = floors[i].min(most[i]);
            }
        }
        got.iter().zip(&self.wants).map(|(got, w)| got / w.cost).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn want(osd: usize, tenant: usize, rate: f64, weight: f64) -> Want {
        Want { osd, tenant, rate, cost: 1.0, weight }
    }

    fn near(a: &[f64], b: &[f64]) {
        assert!(
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() < 0.5),
            "{a:?} {b:?}"
        );
    }

    #[test]
    fn shares_floors_and_ceilings() {
        let none = [(0.0, 0.0); 3];
        let wants = vec![want(0, 0, 100.0, 1.0), want(0, 1, 100.0, 3.0), want(0, 2, 5.0, 1.0)];
        near(&Fair::new(wants.clone(), &[85.0], &none).rates(), &[20.0, 60.0, 5.0]);
        near(&Fair::new(wants.clone(), &[500.0], &none).rates(), &[100.0, 100.0, 5.0]);
        near(
            &Fair::new(wants.clone(), &[85.0], &[(40.0, 0.0), (0.0, 0.0), (0.0, 0.0)]).rates(),
            &[40.0, 40.0, 5.0],
        );
        near(
            &Fair::new(wants, &[85.0], &[(0.0, 0.0), (0.0, 30.0), (0.0, 0.0)]).rates(),
            &[50.0, 30.0, 5.0],
        );
        // A floor goes where it is asked for; a ceiling leaves to others what it does not allow.
        let wants = vec![want(0, 0, 20.0, 1.0), want(1, 0, 60.0, 1.0), want(1, 1, 100.0, 9.0)];
        near(
            &Fair::new(wants.clone(), &[100.0, 100.0], &[(60.0, 0.0), (0.0, 0.0)]).rates(),
            &[20.0, 45.0, 55.0],
        );
        near(
            &Fair::new(wants, &[100.0, 30.0], &[(0.0, 0.0), (0.0, 10.0)]).rates(),
            &[20.0, 20.0, 10.0],
        );
    }
}
