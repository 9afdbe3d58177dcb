# Compiles kernels for CUDA devices to PTX. clang does it, whichever compiler makes the rest, and nothing of
# CUDA is needed. Where clang is missing, or refuses, SHARDINIT_CUDA is off: a build then has no kernels, and
# the processor makes the values for a device.

find_program(SHARDINIT_CLANG NAMES clang++ clang++-19 clang++-18 clang++-17 clang++-16 clang++-15 clang++-14)
# Arrays are in registers only if all loops over them are unrolled.
set(cuda_command ${SHARDINIT_CLANG} -x cuda --cuda-device-only -nocudainc -nocudalib --cuda-gpu-arch=sm_80
    -Xclang -target-feature -Xclang +ptx71 -Wno-unknown-cuda-version -O3 -mllvm -unroll-threshold=10000
    -std=c++20 -ffp-contract=off -Wall -Wextra -Werror -I ${PROJECT_SOURCE_DIR}/src)
set(SHARDINIT_CUDA OFF)
set(refusal "clang++ is missing")
if(SHARDINIT_CLANG)
  execute_process(COMMAND ${cuda_command} -S -o /dev/null -DSHARDINIT_KERNEL=any -DSHARDINIT_ENGINE=philox
    -DSHARDINIT_SAMPLER=normal ${PROJECT_SOURCE_DIR}/src/kernels/cuda.cu
    RESULT_VARIABLE status ERROR_VARIABLE refusal)
  if(status EQUAL 0)
    set(SHARDINIT_CUDA ON)
  endif()
endif()
if(NOT SHARDINIT_CUDA)
  message(STATUS "There will be no kernels for CUDA devices: ${refusal}")
endif()

# Makes OUTPUT of SOURCE, with options. The file that clang writes beside it says of which headers.
function(compile_cuda output source)
  add_custom_command(OUTPUT ${output} VERBATIM DEPFILE ${output}.d DEPENDS ${source}
    COMMAND ${cuda_command} ${source} -S -o ${output} -MD -MT ${output} -MF ${output}.d ${ARGN})
endfunction()
