/* Pipes keep their contents, capacity and packet boundaries; a FIFO too; a full one still blocks, an empty
 * one is empty. */
#include <fcntl.h>
#include <sys/stat.h>

#include "tests/cases/case.h"

int main(void)
{
	int full[2], some[2], packets[2], empty[2], shut[2];
	char block[4096], back[4096];
	size_t filled = 0;
	ssize_t n;

	CHECK(pipe2(full, O_NONBLOCK) == 0 && pipe(some) == 0 && pipe2(packets, O_DIRECT) == 0 &&
	      pipe2(empty, O_NONBLOCK) == 0 && pipe(shut) == 0);
	CHECK(fcntl(full[1], F_SETPIPE_SZ, 1 << 18) == 1 << 18);
	for (; memset(block, (int)(filled / sizeof(block)) & 255, sizeof(block)),
	       (n = write(full[1], block, sizeof(block))) > 0;)
		filled += (size_t)n;
	CHECK(filled == 1 << 18);
	CHECK(write(some[1], "partial page", 12) == 12 && read(some[0], back, 4) == 4);
	CHECK(write(packets[1], "one", 3) == 3 && write(packets[1], "three", 5) == 5);
	CHECK(write(shut[1], "last words", 10) == 10 && close(shut[1]) == 0);
	CHECK(mkfifo("fifo", 0600) == 0);
	int fifo = open("fifo", O_RDWR);
	CHECK(fifo >= 0 && write(fifo, "in the fifo", 11) == 11);

	case_wait();
	CHECK(fcntl(full[0], F_GETPIPE_SZ) == 1 << 18);
	CHECK(write(full[1], "x", 1) == -1 && errno == EAGAIN);
	for (size_t got = 0; got < filled; got += sizeof(block)) {
		CHECK(read(full[0], back, sizeof(back)) == sizeof(back));
		CHECK(back[0] == (char)(got / sizeof(block)) &&
		      memcmp(back, back + 1, sizeof(back) - 1) == 0);
	}
	CHECK(read(full[0], back, 1) == -1 && errno == EAGAIN);
	CHECK(read(some[0], back, 100) == 8 && memcmp(back, "ial page", 8) == 0);
	CHECK(read(packets[0], back, 100) == 3 && read(packets[0], back, 100) == 5);
	CHECK(read(empty[0], back, 1) == -1 && errno == EAGAIN);
	CHECK(read(shut[0], back, 100) == 10 && read(shut[0], back, 100) == 0);
	CHECK(read(fifo, back, 100) == 11 && memcmp(back, "in the fifo", 11) == 0);
	CHECK(unlink("fifo") == 0);
	case_pass();
}
