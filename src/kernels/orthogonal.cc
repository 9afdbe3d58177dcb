#include "rng/orthogonal.h"

#include <algorithm>

#include "base/number.h"
#include "kernels/backend.h"
#include "kernels/kernels.h"
#include "kernels/targets.h"

#define HWY_TARGET_INCLUDE "kernels/orthogonal-inl.h"
#include <hwy/foreach_target.h>

#include "kernels/orthogonal-inl.h"

namespace shardinit::kernels {

void MakePanel(const PanelJob& job) { ActiveBackend().make_panel(job); }

}  // namespace shardinit::kernels
