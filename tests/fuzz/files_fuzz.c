/*
 * libFuzzer: the files of a migration, as its target takes them (scip/files/files.h): announcements,
 * contents, and at the end the manifest in which the files are found. The input is a script.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "channel/wire.h"
#include "proto/frame.h"
#include "proto/image.pb-c.h"
#include "proto/message.h"
#include "scip/files/files.h"
#include "tests/fuzz/help/fuzz_mutate.h"
#include "tests/fuzz/help/fuzz_place.h"

enum { SIZE_MAX_TAKEN = 128 << 10 };

static const struct fuzz_kind kinds[] = {
	{PBEAM__CHANNEL_MESSAGE__MIGRATE_FILES, &pbeam__migrate_files__descriptor},
	{PBEAM__CHANNEL_MESSAGE__MIGRATE_FILE, &pbeam__migrate_file_part__descriptor},
	{0, NULL},
	{PBEAM__CHANNEL_MESSAGE__MIGRATE_STATE, &pbeam__manifest__descriptor}, /* as if it were in an image */
};
enum { KINDS = sizeof(kinds) / sizeof(kinds[0]) };

static struct names *names;
static uint8_t room[WIRE_PART_MAX];

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max, unsigned seed)
{
	return fuzz_mutate_script(kinds, KINDS, data, size, max, seed);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	fuzz_place_open(*argc, *argv);
	if (names_open(&names, NULL) < 0)
		abort();
	return 0;
}

/* Some files that are here: /here (seeds announce it) and /bin. */
static void make_files(void)
{
	char path[256];
	int fd;

	snprintf(path, sizeof(path), "%s/here", fuzz_place());
	fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0700);
	if (fd < 0 || write(fd, "contents", 8) != 8)
		abort();
	close(fd);
	snprintf(path, sizeof(path), "%s/bin", fuzz_place());
	if (mkdir(path, 0700) < 0)
		abort();
}

static void take_manifest(struct files_receiver *receiver, const struct frame *frame)
{
	Pbeam__Manifest *manifest = (void *)frame_unpack(frame, &pbeam__manifest__descriptor, NULL);

	if (manifest)
		(void)!files_receiver_localize(receiver, manifest, true, NULL);
	message_free(manifest);
}

static void take_all(struct files_receiver *receiver, int channel)
{
	struct frame frame = {0};
	int r = 0;

	while (r == 0 && wire_take_any(channel, &frame, NULL) == 0) {
		if (frame.type == PBEAM__CHANNEL_MESSAGE__MIGRATE_FILES)
			r = files_receiver_answer(receiver, channel, &frame, NULL);
		else if (frame.type == PBEAM__CHANNEL_MESSAGE__MIGRATE_FILE)
			r = files_receiver_take_part(receiver, channel, &frame, room, NULL);
		else
			take_manifest(receiver, &frame);
		frame_free(&frame);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char *maps[] = {(char *)(uintptr_t) "/from=/to"};
	Pbeam__MigrateBegin begin = PBEAM__MIGRATE_BEGIN__INIT;
	Pbeam__Job job = PBEAM__JOB__INIT;
	struct files_receiver *receiver = NULL;
	size_t len;
	uint8_t *bytes = size <= SIZE_MAX_TAKEN
				 ? fuzz_script_bytes(kinds, KINDS, fuzz_place_keep_paths, data, size, &len)
				 : NULL;
	int ends[2];

	if (!bytes)
		return 0;
	job.uuid = (char *)(uintptr_t) "fuzz";
	begin.job = &job;
	begin.from = (char *)(uintptr_t) "source";
	begin.maps = maps;
	begin.n_maps = 1;
	begin.send_files = size % 2;
	make_files();
	if (files_receiver_new(&receiver, names, (struct rpid){getpid()}, &begin, "target", NULL) == 0 &&
	    fuzz_place_socket(bytes, len, ends)) {
		take_all(receiver, ends[1]);
		close(ends[0]);
		close(ends[1]);
	}
	files_receiver_free(receiver);
	free(bytes);
	fuzz_place_clean();
	return 0;
}
