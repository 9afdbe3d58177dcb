#include "formats/hdf5/handle.h"

#include <fmt/format.h>

#include <cstdlib>
#include <cstring>
#include <string_view>

#include "base/error.h"
#include "formats/hdf5/setup.h"

namespace shardinit::hdf5 {

std::string LastReason() {
  std::string reason = "unknown reason";
  H5Ewalk2(
      H5E_DEFAULT, H5E_WALK_UPWARD,
      [](unsigned n, const H5E_error2_t* e, void* out) -> herr_t {
        if (n == 0 && e->desc != nullptr) *static_cast<std::string*>(out) = e->desc;
        return 0;
      },
      &reason);
  // The system's own reason stands somewhere in a paragraph of addresses.
  constexpr std::string_view kMark = "error message = '";
  if (const size_t start = reason.find(kMark); start != reason.npos) {
    const size_t text = start + kMark.size();
    return reason.substr(text, reason.find('\'', text) - text);
  }
  return reason;
}

void Fail(const std::string& doing) {
  const std::string reason = LastReason();
  ExitCode code = ExitCode::kWorld;
  // SystemError() gives these errors their own code.
  for (const int error : {EROFS, EOPNOTSUPP, ENOSYS}) {
    if (reason == strerror(error)) code = SystemError(doing, "", error).code();
  }
  throw Error(code, fmt::format("HDF5 cannot {}: {}", doing, reason));
}

void SetUpLibrary() {
  for (const char* name :
       {"HDF5_PLUGIN_PATH", "HDF5_PLUGIN_PRELOAD", "HDF5_VDS_PREFIX", "HDF5_EXT_PREFIX",
        "HDF5_EXTFILE_PREFIX", "HDF5_VOL_CONNECTOR", "HDF5_DRIVER", "HDF5_USE_FILE_LOCKING",
        "HDF5_DISABLE_VERSION_CHECK", "HDF5_PREFER_PARALLEL_NATIVE"}) {
    unsetenv(name);
  }
  // Without this, HDF5's own clean-up at exit would crash after a failed close.
  Require(H5dont_atexit(), "start HDF5");
  Require(H5open(), "start HDF5");
  Require(H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr), "silence HDF5");
  Require(H5PLset_loading_state(0), "forbid HDF5 plugins");
}

}  // namespace shardinit::hdf5
