//! Clusters described in a TOML file; `examples/clusters` has some.

use layout::Device;
use placement::{LinkSpeed, Node, Rates, Speed};
use serde::Deserialize;

/// The limit of a cluster; a larger number in a file is a mistake.
const NODES_MAX: usize = 64;

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClusterFile {
    /// Between any two nodes without an entry in `links`.
    link: Option<Link>,
    /// Whether some pairs cannot link, so that sums go around a ring.
    #[serde(default)]
    pub ring: bool,
    node: Vec<Kind>,
    #[serde(default)]
    links: Vec<Between>,
}

/// A number of equal nodes.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Kind {
    name: String,
    #[serde(default = "one")]
    count: usize,
    /// Memory for models, such as `"512GB"`.
    memory: String,
    /// The kind of its GPU, such as `CUDA`, if it computes on that through ggml's libraries. Nodes
    /// of different kinds share no layer.
    gpu: Option<String>,
    read_gb_per_sec: f64,
    /// Tera-operations (a multiplication and an addition are two) per second, for a long prompt.
    quantised_tops: f64,
    float_tops: f64,
    /// Overhead of launching one operation on the device.
    operation_us: f64,
    /// For a GPU: sending its part of a sum over ranks, receiving the result, and the wait.
    #[serde(default)]
    cut_us: f64,
    /// What its disk reads, for experts that do not fit into memory.
    disk_mb_per_sec: Option<f64>,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
struct Link {
    /// Time of a short message, from sender to receiver.
    message_us: f64,
    /// In each direction.
    gigabits: f64,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Between {
    /// Two names.
    between: [String; 2],
    message_us: f64,
    gigabits: f64,
}

impl Between {
    /// The names in a fixed order.
    fn pair(&self) -> [&str; 2] {
        let [a, b] = &self.between;
        [a.min(b), a.max(b)]
    }
}

fn one() -> usize {
    1
}

impl ClusterFile {
    /// # Errors
    /// The text names the mistake.
    pub fn parse(text: &str) -> Result<Self, String> {
        let file: Self = toml::from_str(text).map_err(|error| error.to_string())?;
        file.check()?;
        Ok(file)
    }

    fn check(&self) -> Result<(), String> {
        let count = self.node.iter().fold(0usize, |sum, kind| sum.saturating_add(kind.count));
        if count == 0 || count > NODES_MAX {
            return Err(format!("{count} nodes; there must be 1 to {NODES_MAX}"));
        }
        let good = |value: f64| value.is_finite() && value > 0.0;
        let not_below = |value: f64| value.is_finite() && value >= 0.0;
        for kind in &self.node {
            crate::args::bytes(&kind.memory)
                .map_err(|why| format!("memory of {}: {why}", kind.name))?;
            let rates = [kind.read_gb_per_sec, kind.quantised_tops, kind.float_tops];
            let fixed = [kind.operation_us, kind.cut_us];
            if !rates.into_iter().all(good) || !fixed.into_iter().all(not_below) {
                let name = &kind.name;
                return Err(format!("the speeds of {name} must be above 0, its costs not below"));
            }
        }
        let links = self.links.iter().map(|link| (link.message_us, link.gigabits));
        let links = links.chain(self.link.map(|link| (link.message_us, link.gigabits)));
        for (message_us, gigabits) in links {
            if !good(gigabits) || !not_below(message_us) {
                return Err("links need message_us of 0 or more, and gigabits above 0".to_owned());
            }
        }
        let names = self.names();
        if let Some(again) = names.iter().enumerate().find(|(at, n)| names[..*at].contains(n)) {
            return Err(format!("two nodes are called {}", again.1));
        }
        let unknown = |name: &&String| !names.contains(name);
        if let Some(name) = self.links.iter().flat_map(|link| &link.between).find(unknown) {
            let known = names.join(", ");
            return Err(format!("a link names {name}, which is none of {known}"));
        }
        let pairs: Vec<_> = self.links.iter().map(Between::pair).collect();
        if let Some((_, [a, b])) = pairs.iter().enumerate().find(|(at, n)| pairs[..*at].contains(n))
        {
            return Err(format!("two links are between {a} and {b}; leave one out"));
        }
        if let Some([a, _]) = pairs.iter().find(|[a, b]| a == b) {
            return Err(format!("a link is between {a} and itself; name two nodes"));
        }
        if self.link.is_none() && count > 1 {
            return Err("[link] must say how fast nodes are linked".to_owned());
        }
        Ok(())
    }

    fn names(&self) -> Vec<String> {
        let of_kind = |kind: &Kind| match kind.count {
            1 => vec![kind.name.clone()],
            count => (1..=count).map(|at| format!("{}{at}", kind.name)).collect(),
        };
        self.node.iter().flat_map(of_kind).collect()
    }

    /// The nodes with these names, in that order.
    ///
    /// # Errors
    /// A name matches no node.
    pub fn named(&self, names: &[String]) -> Result<Vec<Node>, String> {
        let (all, mut chosen) = (self.nodes(), Vec::new());
        for (id, name) in names.iter().enumerate() {
            let Some(at) = all.iter().position(|node| node.name == *name) else {
                return Err(format!(
                    "no node is called {name}; there are: {}",
                    self.names().join(", ")
                ));
            };
            let links = names[..id].iter().map(|other| self.way(name, other)).collect();
            chosen.push(Node { id, links, ..all[at].clone() });
        }
        Ok(chosen)
    }

    /// The first `count` nodes; beyond the described ones, copies of the last.
    pub fn scaled(&self, count: usize) -> Self {
        let mut scaled = self.clone();
        let mut left = count;
        for kind in &mut scaled.node {
            kind.count = kind.count.min(left);
            left -= kind.count;
        }
        if let Some(last) = scaled.node.last_mut() {
            last.count += left;
        }
        scaled.node.retain(|kind| kind.count > 0);
        scaled
    }

    /// The nodes, the first of which has the model's file.
    pub fn nodes(&self) -> Vec<Node> {
        let kinds = self.node.iter().flat_map(|kind| std::iter::repeat_n(kind, kind.count));
        let names = self.names();
        let nodes = kinds.zip(&names).enumerate().map(|(id, (kind, name))| {
            let rates = Rates {
                read_bytes_per_sec: kind.read_gb_per_sec * 1e9,
                quantised_ops_per_sec: kind.quantised_tops * 1e12,
                float_ops_per_sec: kind.float_tops * 1e12,
            };
            Node {
                id,
                name: name.clone(),
                device: kind.gpu.as_ref().map_or(Device::Cpu, |_| Device::Ggml),
                class: kind.gpu.clone().unwrap_or_default(),
                memory_free_bytes: crate::args::bytes(&kind.memory).unwrap_or(0),
                threads: 1,
                speed: Some(Speed {
                    cut_secs: kind.cut_us * 1e-6,
                    disk_bytes_per_sec: kind.disk_mb_per_sec.map(|rate| rate * 1e6),
                    ..Speed::alone(rates, kind.operation_us * 1e-6)
                }),
                machine: None,
                links: (0..id).map(|other| self.way(name, &names[other])).collect(),
                uncalled: Vec::new(),
            }
        });
        nodes.collect()
    }

    fn way(&self, a: &str, b: &str) -> Option<LinkSpeed> {
        let is_it = |link: &&Between| {
            let [from, to] = &link.between;
            (from == a && to == b) || (from == b && to == a)
        };
        let special = self.links.iter().find(is_it);
        let special =
            special.map(|link| Link { message_us: link.message_us, gigabits: link.gigabits });
        special.or(self.link).map(|link| LinkSpeed {
            message_secs: link.message_us * 1e-6,
            bytes_per_sec: link.gigabits * 1e9 / 8.0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    const TWO: &str = r#"
        [link]
        message_us = 10
        gigabits = 8
        [[node]]
        name = "pi"
        count = 2
        memory = "4GB"
        read_gb_per_sec = 10
        quantised_tops = 0.1
        float_tops = 0.05
        operation_us = 2
    "#;

    #[test]
    fn nodes_have_what_the_file_says() {
        let nodes = ClusterFile::parse(TWO).unwrap().nodes();
        assert_eq!(nodes.iter().map(|node| node.name.as_str()).collect::<Vec<_>>(), ["pi1", "pi2"]);
        assert_eq!(nodes[1].memory_free_bytes, 4_000_000_000);
        let link = nodes[1].links[0].unwrap();
        assert!((link.message_secs - 1e-5).abs() < 1e-12 && link.bytes_per_sec == 1e9);
        let named = ClusterFile::parse(TWO).unwrap().named(&["pi2".to_owned()]).unwrap();
        assert_eq!((named.len(), named[0].name.as_str()), (1, "pi2"));
        assert!(ClusterFile::parse(TWO).unwrap().named(&["pi".to_owned()]).is_err());
        let scaled = |count| ClusterFile::parse(TWO).unwrap().scaled(count).nodes();
        assert_eq!([1, 2, 5].map(|count| scaled(count).len()), [1, 2, 5]);
        assert_eq!(scaled(5)[4].links.len(), 4);
        assert!(nodes.iter().all(|node| node.device == Device::Cpu && node.class.is_empty()));
        let gpus = TWO.replace("count = 2", "count = 2\ngpu = \"CUDA\"");
        let gpus = ClusterFile::parse(&gpus).unwrap().nodes();
        assert!(gpus.iter().all(|node| node.device == Device::Ggml && node.class == "CUDA"));
        let faster = "[[links]]\nbetween = [\"pi1\", \"pi2\"]\nmessage_us = 1\ngigabits = 80";
        let nodes = ClusterFile::parse(&format!("{TWO}\n{faster}")).unwrap().nodes();
        assert_eq!(nodes[1].links[0].unwrap().bytes_per_sec, 1e10);
    }

    #[test]
    fn mistakes_are_named() {
        for (from, to, why) in [
            ("count = 2", "count = 65", "65 nodes"),
            ("count = 2", "count = 0", "0 nodes"),
            ("memory = \"4GB\"", "memory = \"4 parsecs\"", "memory of pi"),
            ("read_gb_per_sec = 10", "read_gb_per_sec = 0", "speeds of pi"),
            ("operation_us = 2", "operation_us = 2\ncut_us = -1", "its costs not below"),
            ("gigabits = 8", "gigabits = -1", "gigabits above 0"),
            ("gigabits = 8", "gigabytes = 8", "gigabytes"),
            ("[link]\n        message_us = 10\n        gigabits = 8", "", "[link] must say"),
        ] {
            let error = ClusterFile::parse(&TWO.replace(from, to)).unwrap_err();
            assert!(error.contains(why), "{error:?} should contain {why:?}");
        }
        let link = |a: &str, b: &str| {
            format!("[[links]]\nbetween = [{a:?}, {b:?}]\nmessage_us = 1\ngigabits = 8\n")
        };
        for (links, why) in [
            (link("pi1", "pi2") + &link("pi2", "pi1"), "two links are between pi1 and pi2"),
            (link("pi1", "pi1"), "between pi1 and itself"),
            (link("pi1", "pi3"), "names pi3"),
        ] {
            let error = ClusterFile::parse(&format!("{TWO}\n{links}")).unwrap_err();
            assert!(error.contains(why), "{error:?} should contain {why:?}");
        }
    }

    #[test]
    fn the_examples_are_clusters() {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/clusters");
        let mut read = 0;
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|extension| extension == "toml") {
                let text = std::fs::read_to_string(&path).unwrap();
                let file = ClusterFile::parse(&text);
                let nodes = file.unwrap_or_else(|why| panic!("{}: {why}", path.display())).nodes();
                assert!(!nodes.is_empty());
                read += 1;
            }
        }
        assert!(read >= 14, "{read}");
    }
}
