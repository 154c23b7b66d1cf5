/*
 * Structure-aware mutation for the fuzzers: messages by their schema, and scripts, which are what a peer
 * sends on a connection.
 *
 * A script is a list of records: one byte for the kind, two for the length (little endian), the bytes. A kind
 * with a descriptor is a message, which is sent as a frame; one without is bulk data, sent as it is.
 */
#ifndef TESTS_FUZZ_FUZZ_MUTATE_H
#define TESTS_FUZZ_FUZZ_MUTATE_H

#include <protobuf-c/protobuf-c.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* libFuzzer's own mutation of bytes, and its entry points, for which there is no header. */
size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max);
int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max, unsigned seed);

/* Changes the packed message in place: fields are set, cleared, repeated, removed, exchanged. Bytes that are
 * no message become an empty one. Returns the new size. */
size_t fuzz_mutate_message(const ProtobufCMessageDescriptor *descriptor, uint8_t *data, size_t size,
			   size_t max, unsigned seed);

struct fuzz_kind {
	uint32_t type; /* of the frame */
	const ProtobufCMessageDescriptor *descriptor;
};
struct fuzz_record {
	unsigned kind;
	const uint8_t *data;
	size_t len;
};
/* Takes the next record of a script. False: there is none. */
bool fuzz_script_next(const uint8_t **at, size_t *left, size_t nkinds, struct fuzz_record *out);
size_t fuzz_mutate_script(const struct fuzz_kind *kinds, size_t nkinds, uint8_t *data, size_t size,
			  size_t max, unsigned seed);
/* Makes the bytes that the script stands for, malloc'd; `adjust` (may be NULL) may change every message that
 * can be unpacked. NULL without memory. */
uint8_t *fuzz_script_bytes(const struct fuzz_kind *kinds, size_t nkinds,
			   void (*adjust)(ProtobufCMessage *message), const uint8_t *data, size_t size,
			   size_t *len);

#endif
