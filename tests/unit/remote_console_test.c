/* The output of a remote console: each byte once, even if the channels that carry it break. */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "scip/job/remote_console_output.h"
#include "scip/job/remote_console_positions.h"
#include "tests/unit/unit.h"

static void add(struct console_output *output, size_t n)
{
	for (size_t i = 0; i < n; i++)
		console_output_end(output)[i] = (char)((output->base + output->len + i) % 251);
	console_output_added(output, n);
}

/* Sends one piece and checks it. */
static size_t send_piece(struct console_output *output, uint64_t expected)
{
	const char *bytes;
	uint64_t position;
	size_t n = console_output_next(output, &bytes, &position);

	if (n)
		assert_int_equal(position, expected);
	for (size_t i = 0; i < n; i++)
		assert_int_equal((unsigned char)bytes[i], (expected + i) % 251);
	return n;
}

static void test_window(void **state)
{
	struct console_output *output = calloc(1, sizeof(*output));
	uint64_t at = 0;
	size_t n;

	assert_non_null(output);
	add(output, CONSOLE_WINDOW);
	assert_int_equal(console_output_room(output), 0);
	while ((n = send_piece(output, at)) > 0)
		at += n;
	assert_int_equal(at, CONSOLE_WINDOW);
	assert_int_equal(console_output_confirm(output, 1000), 0);
	assert_int_equal(console_output_confirm(output, 1000), 0);
	assert_int_equal(console_output_room(output), 1000);
	add(output, 1000);
	assert_int_equal(send_piece(output, at), 1000);
	assert_int_equal(console_output_confirm(output, at + 1000), 0);
	assert_int_equal(console_output_room(output), CONSOLE_WINDOW);
	free(output);
}

static void test_rewind(void **state)
{
	struct console_output *output = calloc(1, sizeof(*output));

	assert_non_null(output);
	add(output, 5000);
	assert_int_equal(send_piece(output, 0), 5000);
	add(output, 300);
	/* The channel breaks; home has written 1200 bytes of it. */
	assert_int_equal(console_output_rewind(output, 1200), 0);
	assert_int_equal(send_piece(output, 1200), 4100);
	assert_int_equal(send_piece(output, 5300), 0);
	free(output);
}

static void test_false_confirmation(void **state)
{
	struct console_output *output = calloc(1, sizeof(*output));

	assert_non_null(output);
	add(output, 100);
	assert_int_equal(console_output_confirm(output, 1), -EINVAL); /* nothing was sent */
	assert_int_equal(send_piece(output, 0), 100);
	assert_int_equal(console_output_confirm(output, 101), -EINVAL);
	assert_int_equal(console_output_confirm(output, 60), 0);
	assert_int_equal(console_output_rewind(output, 59), -EINVAL);
	assert_int_equal(console_output_rewind(output, UINT64_MAX), -EINVAL);
	free(output);
}

/* A process that has the links and writes for a part until it is killed. */
static pid_t claim_in_child(struct console_positions *positions, Pbeam__RemoteConsole *hello, uint64_t *from)
{
	struct console_part *part;
	int ready[2];
	pid_t pid;

	assert_int_equal(pipe(ready), 0);
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		console_positions_begin(positions);
		part = console_positions_claim(positions, hello);
		if (!part || write(ready[1], &part->written[1], sizeof(*from)) < 0)
			_exit(1);
		atomic_fetch_add(&part->written[1], 7);
		for (;;)
			pause();
	}
	assert_int_equal(read(ready[0], from, sizeof(*from)), sizeof(*from));
	close(ready[0]);
	close(ready[1]);
	return pid;
}

static void test_positions(void **state)
{
	Pbeam__RemoteConsole hello = PBEAM__REMOTE_CONSOLE__INIT;
	struct console_positions *positions = console_positions_make(NULL);
	uint64_t base[CONSOLE_STREAMS] = {0, 10, 0}, from;
	pid_t first;

	assert_non_null(positions);
	hello.vpid = 5;
	hello.instance = 77;
	hello.written = base;
	hello.n_written = CONSOLE_STREAMS;
	first = claim_in_child(positions, &hello, &from);
	assert_int_equal(from, 10);
	usleep(50000);
	/* The next process for the same guest's end continues there. */
	for (int i = 1; i < 4; i++) {
		kill(first, SIGKILL);
		waitpid(first, NULL, 0);
		first = claim_in_child(positions, &hello, &from);
		assert_int_equal(from, 10 + 7 * i);
		usleep(50000);
	}
	/* Another part has its own place; a new guest's end begins where it says. */
	hello.vpid = 6;
	hello.instance = 78;
	kill(first, SIGKILL);
	waitpid(first, NULL, 0);
	first = claim_in_child(positions, &hello, &from);
	assert_int_equal(from, 10);
	kill(first, SIGKILL);
	waitpid(first, NULL, 0);
	hello.vpid = 5;
	hello.instance = 79;
	base[1] = 4;
	first = claim_in_child(positions, &hello, &from);
	assert_int_equal(from, 4);
	kill(first, SIGKILL);
	waitpid(first, NULL, 0);
}

/* Each part has its own place, up to the limit; a released place can be reused. */
static void test_all_parts(void **state)
{
	struct console_positions *positions = console_positions_make(NULL);
	Pbeam__RemoteConsole hello = PBEAM__REMOTE_CONSOLE__INIT;
	struct console_part *parts[CONSOLE_PARTS_MAX];

	assert_non_null(positions);
	for (int i = 0; i < CONSOLE_PARTS_MAX; i++) {
		hello.vpid = i + 1;
		parts[i] = console_positions_claim(positions, &hello);
		assert_non_null(parts[i]);
		atomic_store(&parts[i]->written[2], (uint64_t)i + 1);
		for (int k = 0; k < i; k++)
			assert_ptr_not_equal(parts[i], parts[k]);
	}
	hello.vpid = CONSOLE_PARTS_MAX + 1;
	assert_null(console_positions_claim(positions, &hello));
	console_positions_release(parts[9]);
	assert_ptr_equal(console_positions_claim(positions, &hello), parts[9]);
	assert_int_equal(atomic_load(&parts[9]->written[2]), 0);
}

/* A coordinator waits until the console has ended, and ends a process that does not reply. */
static void test_end(void **state)
{
	struct console_positions *positions = console_positions_make(NULL);
	int status;
	pid_t pid;

	assert_non_null(positions);
	pid = fork();
	if (pid == 0) {
		struct pollfd wake = {.fd = console_positions_wake(positions), .events = POLLIN};

		if (poll(&wake, 1, 5000) != 1 || console_positions_wanted(positions) != 7)
			_exit(1);
		console_positions_ended(positions);
		for (;;)
			pause();
	}
	console_positions_end(positions, 7, pid);
	assert_int_equal(waitpid(pid, &status, WNOHANG), 0);
	console_positions_end(positions, 8, pid);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_window),
		cmocka_unit_test(test_rewind),
		cmocka_unit_test(test_false_confirmation),
		cmocka_unit_test(test_positions),
		cmocka_unit_test(test_all_parts),
		cmocka_unit_test(test_end),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
