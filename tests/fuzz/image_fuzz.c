/* libFuzzer: the image parser on arbitrary bytes. The mutator hardly ever finds correct digests, so a
 * second mode unpacks the input as a manifest in a well-formed file. */
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/io.h"
#include "image/image.h"
#include "tests/fuzz/help/fuzz_image.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void read_file(int fd)
{
	struct err err = ERR_INIT;
	struct image_reader *reader;

	if (image_reader_open_fd(&reader, fd, "input", &err) < 0)
		return;
	(void)!image_reader_verify(reader, &err);
	image_reader_close(reader);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	int fd;

	if (size > (512u << 10))
		return 0;
	fd = fuzz_image(data, size, 1);
	if (fd >= 0)
		read_file(fd);
	fd = memfd_create("fuzz", MFD_CLOEXEC);
	if (fd >= 0 && io_write_full(fd, data, size) == 0)
		read_file(fd);
	else
		close(fd);
	return 0;
}
