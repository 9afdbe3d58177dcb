// Before Highway, wherever it makes code for several instruction sets.
#pragma once

// The baseline without vector instructions is then the same with every compiler.
#define HWY_BROKEN_EMU128 1
