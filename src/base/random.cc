#include "base/random.h"

#include <fmt/format.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/error.h"

namespace shardinit {

void FillRandom(void* out, size_t bytes) {
  auto* at = static_cast<uint8_t*>(out);
  while (bytes > 0) {
    // glibc before 2.25 has no function for this. At most 256 bytes are read at once.
    const ssize_t n = syscall(SYS_getrandom, at, std::min(bytes, size_t{256}), 0);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      throw Error(ExitCode::kWorld, fmt::format("cannot get random bytes: {}", strerror(errno)));
    }
    at += n;
    bytes -= static_cast<size_t>(n);
  }
}

uint64_t RandomBits() {
  uint64_t bits = 0;
  FillRandom(&bits, sizeof bits);
  return bits;
}

}  // namespace shardinit
