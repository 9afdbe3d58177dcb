# The interface library shardinit_libraries is all that shardinit is made from. Linked statically, it
# needs archives of position-independent code, which Debian lacks for four of them: src/wheel.sh
# builds those.
add_library(shardinit_libraries INTERFACE)
find_package(CLI11 REQUIRED)
find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(nlohmann_json REQUIRED)
# libcurl is loaded where a URL is used, so that nothing else needs it; this takes its headers alone.
find_path(CURL_INCLUDE curl/curl.h PATH_SUFFIXES ${CMAKE_LIBRARY_ARCHITECTURE} REQUIRED)
target_include_directories(shardinit_libraries SYSTEM INTERFACE ${CURL_INCLUDE})

if(SHARDINIT_STATIC)
  set(CMAKE_FIND_LIBRARY_SUFFIXES .a)
  # The packages' own descriptions are those of shared libraries, and CMake's for HDF5 asks its
  # compiler, which forgets libaec.
  foreach(name hdf5_serial sz aec z yaml-cpp hwy deflate zstd mpfr gmp crypto)
    find_library(STATIC_${name} ${name} REQUIRED)
    target_link_libraries(shardinit_libraries INTERFACE ${STATIC_${name}})
  endforeach()
  find_path(HDF5_INCLUDE hdf5.h PATH_SUFFIXES hdf5/serial REQUIRED)
  target_include_directories(shardinit_libraries SYSTEM INTERFACE ${HDF5_INCLUDE})
  target_compile_definitions(shardinit_libraries INTERFACE SHARDINIT_STATIC YAML_CPP_STATIC_DEFINE
    HWY_STATIC_DEFINE)
  target_link_libraries(shardinit_libraries INTERFACE
    CLI11::CLI11 fmt::fmt-header-only nlohmann_json::nlohmann_json Threads::Threads ${CMAKE_DL_LIBS})
  target_link_options(shardinit_libraries INTERFACE
    $<$<CXX_COMPILER_ID:GNU>:-static-libstdc++ -static-libgcc>)
else()
  find_package(HDF5 REQUIRED COMPONENTS C)
  find_package(OpenSSL REQUIRED COMPONENTS Crypto)
  find_package(hwy REQUIRED)
  find_package(yaml-cpp REQUIRED)
  find_library(DEFLATE_LIBRARY deflate REQUIRED)
  find_library(ZSTD_LIBRARY zstd REQUIRED)
  find_library(MPFR_LIBRARY mpfr REQUIRED)
  target_include_directories(shardinit_libraries SYSTEM INTERFACE ${HDF5_C_INCLUDE_DIRS})
  target_link_libraries(shardinit_libraries INTERFACE
    CLI11::CLI11 fmt::fmt nlohmann_json::nlohmann_json Threads::Threads
    ${HDF5_C_LIBRARIES} OpenSSL::Crypto hwy::hwy ${DEFLATE_LIBRARY} ${ZSTD_LIBRARY} ${MPFR_LIBRARY} yaml-cpp)
endif()
