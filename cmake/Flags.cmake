# Warnings are errors, in every build and with both compilers.
add_compile_definitions(_GNU_SOURCE PBEAM_VERSION="${PROJECT_VERSION}")
add_compile_options(
  -Wall -Wextra -Werror -Wmissing-prototypes -Wstrict-prototypes -Wshadow -Wswitch-enum -Wvla -Wpointer-arith -Wwrite-strings
  -Wformat=2 -Wundef -Wno-unused-parameter -fno-strict-aliasing)
include_directories(${CMAKE_SOURCE_DIR} ${CMAKE_BINARY_DIR})
option(PBEAM_SANITIZE "ASan and UBSan" OFF)
if(PBEAM_SANITIZE)
  # The instrumentation makes GCC see truncation and uninitialized values that are not there.
  add_compile_options(-fsanitize=address,undefined -fno-omit-frame-pointer -fno-sanitize-recover=undefined -Wno-format-truncation -Wno-maybe-uninitialized)
  add_link_options(-fsanitize=address,undefined)
endif()
option(PBEAM_FUZZ "libFuzzer targets (clang)" OFF)
if(PBEAM_FUZZ)
  add_compile_options(-fsanitize=fuzzer-no-link,address,undefined -fno-omit-frame-pointer -fno-sanitize-recover=undefined)
  add_link_options(-fsanitize=address,undefined)
endif()
option(PBEAM_FAULTS "Fault points for the tests (base/fault.h); a packager turns them off" ON)
if(PBEAM_FAULTS)
  add_compile_definitions(PBEAM_FAULTS)
endif()
