/*
 * Where a fuzzer may write: a directory of its own, with RUNTIME and STATE beside it. The files that inputs
 * name lie there, and the kernel (Landlock, where it has it) keeps the process from writing elsewhere.
 */
#ifndef TESTS_FUZZ_FUZZ_PLACE_H
#define TESTS_FUZZ_FUZZ_PLACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <protobuf-c/protobuf-c.h>

/* Makes the directory, which is removed at exit, and drops logs. Call it from LLVMFuzzerInitialize(), with
 * its arguments: their directories stay writable. Aborts on failure. */
void fuzz_place_open(int argc, char **argv);
const char *fuzz_place(void);
/* Removes what an input has made there. */
void fuzz_place_clean(void);
/* Makes every path in the message one of that directory: fields with bytes or a string that begins with '/'.
 */
void fuzz_place_keep_paths(ProtobufCMessage *message);
/* From now on a file that would become larger is refused with EFBIG. libFuzzer takes the signal for a finding
 * and sets its handler after LLVMFuzzerInitialize(): call this for each input. */
void fuzz_place_limit_files(uint64_t size);
/* Makes a socket on whose end ends[1] `size` bytes wait, and then the end of file. What is written to it
 * waits at ends[0]; neither end blocks. False: the bytes do not fit, and there is no socket. */
bool fuzz_place_socket(const uint8_t *data, size_t size, int ends[2]);

#endif
