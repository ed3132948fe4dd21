// What Sinew's source takes for granted of macOS, against Apple's headers: scripts/macos/facts.sh
// compiles this for a Mac, with the numbers as they stand in the source.
#include <errno.h>
#include <sys/socket.h>
#include <sys/syslimits.h>
#include <sys/un.h>
#include <time.h>

_Static_assert(OPEN_MAX == SINEW_OPEN_MAX, "crates/cli/src/descriptors.rs");
_Static_assert(ENOMEM == SINEW_ENOMEM, "crates/link/src/rdma/error.rs");
_Static_assert(EBUSY == SINEW_EBUSY, "crates/link/src/rdma/error.rs");
_Static_assert(EINVAL == SINEW_EINVAL, "crates/link/src/rdma/error.rs");
