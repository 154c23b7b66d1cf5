/*
 * libFuzzer: the files from which programs of the same user learn what happened before: records of a job
 * (namespace/record.h), paths on this host (namespace/paths.h), journals of files that change
 * (image/file_journal.c). The first byte selects the file; a journal gets a right digest unless the second
 * byte is odd.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#define XXH_STATIC_LINKING_ONLY
#include <xxhash.h>

#include "base/dirs.h"
#include "base/io.h"
#include "image/file_undo.h"
#include "namespace/paths.h"
#include "namespace/record.h"
#include "proto/message.h"
#include "proto/undo.pb-c.h"
#include "tests/fuzz/help/fuzz_mutate.h"
#include "tests/fuzz/help/fuzz_place.h"

enum { KEEPER = 77, SIZE_MAX_TAKEN = 64 << 10, HEAD = 2 };
enum { PATHS, WATCHES, FILTERS, TERMINALS, SEGMENTS, PEERS, JOURNAL, FILES };

static const char *const names_of[] = {"77.paths", "77.watches", "77.5.filters",
				       "77.pts",   "77.ipc",	 "77.peers"};
static const struct rpid keeper = {KEEPER};
static struct names *names;
static char record_dir[PATH_MAX], undo_dir[PATH_MAX];

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max, unsigned seed)
{
	if (size < HEAD || data[0] % FILES != JOURNAL || data[1] % 2 || seed % 8 == 0)
		return LLVMFuzzerMutate(data, size, max);
	return HEAD + fuzz_mutate_message(&pbeam__undo_journal__descriptor, data + HEAD, size - HEAD,
					  max - HEAD, seed);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	fuzz_place_open(*argc, *argv);
	if (names_open(&names, NULL) < 0 || dirs_runtime(record_dir, "record", NULL) < 0 ||
	    dirs_state(undo_dir, ".undo", NULL) < 0)
		abort();
	return 0;
}

static void write_file(const char *dir, const char *name, const void *head, size_t head_len,
		       const uint8_t *data, size_t size)
{
	char path[PATH_MAX + 64];
	int fd;

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	if (fd < 0 || (head_len && io_write_full(fd, head, head_len) < 0) ||
	    io_write_full(fd, data, size) < 0)
		abort();
	close(fd);
}

static void use_paths(void)
{
	struct paths paths, again;
	char out[PATH_MAX];

	if (paths_load(&paths, keeper) < 0)
		return;
	for (size_t i = 0; i < paths.n; i++) {
		(void)!paths_find(&paths, paths.v[i].name);
		(void)!paths_real(&paths, paths.v[i].name, out, sizeof(out));
		(void)!paths_name(&paths, paths.v[i].real, out, sizeof(out));
		(void)!paths_program(&paths, paths.v[i].name);
		(void)!paths_has_file(&paths, "x");
	}
	/* What was read is what is written. */
	if (paths_store(&paths, names, keeper) < 0 || paths_load(&again, keeper) < 0 || again.n != paths.n)
		abort();
	paths_free(&again);
	paths_free(&paths);
}

static void use_filters(void)
{
	void *filter;
	size_t bytes;

	for (unsigned i = 0; i < 64 && record_filter_get(keeper, (struct vpid){5}, i, &filter, &bytes) == 1;
	     i++)
		free(filter);
	(void)!record_filter_inherit(keeper, (struct vpid){5}, (struct vpid){6});
}

static void use_records(unsigned file)
{
	char path[PATH_MAX];
	int32_t *ids = NULL;
	size_t n;

	if (file == PATHS)
		use_paths();
	if (file == WATCHES && record_watch_find(keeper, 8, 1, path, sizeof(path)) == 0)
		(void)!record_watch_add(keeper, 8, 2, path);
	if (file == FILTERS)
		use_filters();
	if (file == TERMINALS) {
		(void)!record_pts_bind(names, keeper, 3, 4);
		(void)!record_pts_real(keeper, 3);
		(void)!record_pts_virtual(names, keeper, 5);
	}
	if (file == SEGMENTS && record_ipc_list(keeper, NAMES_IPC_SHM, &ids, &n) == 0)
		free(ids);
	if (file == PEERS)
		(void)record_peer_find(keeper, 12);
}

static int keep_undo_file(Pbeam__UndoFile *file)
{
	char path[256];
	struct stat st;

	/* A file that is here, and sometimes the very one of the journal. */
	snprintf(path, sizeof(path), "%s/file", fuzz_place());
	if (stat(path, &st) < 0 || (file->ino % 2 && message_text(&file->path, path) < 0))
		return -1;
	if (file->ino % 2)
		file->ino = st.st_ino;
	if (file->size > 1 << 20)
		file->size %= 1 << 20;
	if (file->length > 1 << 20)
		file->length %= 1 << 20;
	return 0;
}

static void use_journal(const uint8_t *data, size_t size, unsigned how)
{
	Pbeam__UndoJournal *journal = how % 2 ? NULL : pbeam__undo_journal__unpack(NULL, size, data);
	struct {
		char magic[8], state, zero[7];
		uint64_t length, digest;
	} head = {.magic = "PBEAMUN1", .state = (char)(how / 2)};
	ProtobufCBinaryData packed = {0};

	write_file(fuzz_place(), "file", NULL, 0, (const uint8_t *)"now", 3);
	write_file(fuzz_place(), "copy", NULL, 0, (const uint8_t *)"before", 6);
	if (journal) {
		fuzz_place_keep_paths(&journal->base);
		for (size_t i = 0; i < journal->n_files; i++)
			if (keep_undo_file(journal->files[i]) < 0)
				abort();
		if (message_packed(&packed, &journal->base) < 0)
			abort();
		head.length = packed.len;
		head.digest = XXH3_64bits(packed.data, packed.len);
		write_file(undo_dir, "1.journal", &head, sizeof(head), packed.data, packed.len);
	} else {
		write_file(undo_dir, "1.journal", NULL, 0, data, size);
	}
	if (how & 0x40)
		file_undo_decide(KEEPER, how & 0x80);
	else
		(void)!file_undo_recover(NULL);
	free(packed.data);
	message_free(journal);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char path[PATH_MAX + 64];
	unsigned file;

	if (size < HEAD || size > SIZE_MAX_TAKEN)
		return 0;
	file = data[0] % FILES;
	if (file == JOURNAL) {
		use_journal(data + HEAD, size - HEAD, data[1]);
		snprintf(path, sizeof(path), "%s/1.journal", undo_dir);
	} else {
		write_file(record_dir, names_of[file], NULL, 0, data + HEAD, size - HEAD);
		use_records(file);
		snprintf(path, sizeof(path), "%s/%s", record_dir, names_of[file]);
	}
	unlink(path);
	record_forget_job(keeper);
	fuzz_place_clean();
	return 0;
}
