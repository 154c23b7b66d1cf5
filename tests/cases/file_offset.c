/* A regular file keeps its offset, its flags and its sharing between duplicated descriptors. */
#include <fcntl.h>

#include "tests/cases/case.h"

int main(void)
{
	char name[] = "offset.XXXXXX";
	char text[8] = "";
	int fd = mkostemp(name, O_APPEND);
	int twin = dup(fd);

	CHECK(fd >= 0 && twin >= 0);
	CHECK(write(fd, "abcdefgh", 8) == 8);
	CHECK(lseek(fd, 3, SEEK_SET) == 3);
	case_wait();
	CHECK(lseek(twin, 0, SEEK_CUR) == 3);
	CHECK(read(fd, text, 2) == 2 && memcmp(text, "de", 2) == 0);
	CHECK(lseek(twin, 0, SEEK_CUR) == 5);
	CHECK(fcntl(twin, F_GETFL) & O_APPEND);
	CHECK(unlink(name) == 0);
	case_pass();
}
