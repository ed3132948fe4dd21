//! The memory limit of a control group: containers and services get less than the machine has.

use std::fs;
use std::path::{Path, PathBuf};

/// The mount point of control groups on Linux.
const ROOT: &str = "/sys/fs/cgroup";
/// Version 1 represents "no limit" by a number near 2^63.
const NO_LIMIT: u64 = 1 << 62;

/// The lowest limit of all groups of this process; `None` without a limit.
pub fn memory_limit_bytes() -> Option<u64> {
    let membership = fs::read_to_string("/proc/self/cgroup").ok()?;
    limit(Path::new(ROOT), &membership)
}

/// `membership`: lines `number:controllers:/path`; the line without controllers is that of version
/// 2.
fn limit(root: &Path, membership: &str) -> Option<u64> {
    let groups = membership.lines().filter_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next()?, fields.next()?);
        match controllers {
            "" => Some((root.to_path_buf(), path, "memory.max")),
            known if known.split(',').any(|one| one == "memory") => {
                Some((root.join("memory"), path, "memory.limit_in_bytes"))
            }
            _ => None,
        }
    });
    groups.filter_map(|(root, path, file)| least(&root, path, file)).min()
}

/// The minimum of a group's limit and those of its ancestors. In a container the path may name
/// groups outside of it, which are invisible; its own group is then at the root.
fn least(root: &Path, path: &str, file: &str) -> Option<u64> {
    let group = root.join(path.trim_start_matches('/'));
    let around = group.ancestors().take_while(|group| group.starts_with(root));
    around.map(PathBuf::from).filter_map(|group| read(&group.join(file))).min()
}

fn read(file: &Path) -> Option<u64> {
    let limit: u64 = fs::read_to_string(file).ok()?.trim().parse().ok()?;
    (limit < NO_LIMIT).then_some(limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_limit_of_all_groups_counts() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        let write = |path: &str, text: &str| {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("user.slice/memory.max", "5000\n");
        write("user.slice/a.service/memory.max", "max\n");
        write("user.slice/b.service/memory.max", "4000\n");
        write("memory/docker/c/memory.limit_in_bytes", "3000\n");
        write("memory/memory.limit_in_bytes", "9223372036854771712\n");
        let cases = [
            ("0::/user.slice/a.service\n", Some(5000)),
            ("0::/user.slice/b.service\n", Some(4000)),
            ("0::/\n", None),
            ("0::/elsewhere/x\n", None),
            ("5:cpu,cpuacct:/docker/c\n4:hugetlb,memory:/docker/c\n0::/\n", Some(3000)),
            ("4:memory:/\n", None),
            ("4:memory:/docker/c\n0::/user.slice/b.service\n", Some(3000)),
            ("nonsense\n", None),
        ];
        for (membership, expected) in cases {
            assert_eq!(limit(root, membership), expected, "{membership:?}");
        }
        // A container sees its own group at the root.
        write("memory.max", "2000");
        assert_eq!(limit(root, "0::/system.slice/of-the-host\n"), Some(2000));
    }
}
