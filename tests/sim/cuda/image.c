/* Reads device binaries. A fat binary is a header and entries, one image each; an ELF image has a section
 * ".nv.info.NAME" for each kernel, whose attributes of kind 0x17 give index, offset and size of the
 * parameters. NVIDIA describes none of this; it is what nvcc of CUDA 12 and 13 writes. */
#include "image.h"

#include <elf.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#ifdef RPSIM_ZSTD
#include <zstd.h>
#endif

#define FAT_MAGIC "\x50\xed\x55\xba"
#define ENTRY_ELF 2u
#define ENTRY_ZSTD 0x8000u
#define ENTRY_PACKED 0xf000u /* any compression */
#define INFO_PARAM 0x17u
#define PARAM_SIZE_SHIFT 18
#define INFO_PARAM_LARGE                                                                                     \
  0x45u /* of a kernel with more than 4 KiB of parameters: the size has a word of its own */

struct fat_header {
  uint32_t magic;
  uint16_t version, header_bytes;
  uint64_t body_bytes;
};

struct fat_entry {
  uint16_t kind, version;
  uint32_t header_bytes;
  uint64_t padded_bytes;
  uint32_t packed_bytes, reserved0;
  uint16_t minor, major;
  uint32_t architecture, name_offset, name_bytes;
  uint64_t flags, reserved1, unpacked_bytes;
};
_Static_assert(sizeof(struct fat_header) == 16 && sizeof(struct fat_entry) == 64, "as on disk");

struct bytes {
  const unsigned char *data;
  size_t size;
};

/* Byte by byte, for what is no image may be shorter than the magic. */
static bool starts_with(const void *image, const char magic[4]) {
  const char *text = image;
  for (int i = 0; i < 4; i++)
    if (text[i] != magic[i]) return false;
  return true;
}

/* `size` bytes at `offset`, or NULL if they are not all there. */
static const void *at(struct bytes image, uint64_t offset, uint64_t size) {
  return offset <= image.size && size <= image.size - offset ? image.data + offset : NULL;
}

/* ---- ELF images ---- */

/* Section headers or program headers, whichever end last, end the file. */
static size_t elf_bytes(const void *image) {
  const Elf64_Ehdr *elf = image;
  uint64_t sections = elf->e_shoff + (uint64_t)elf->e_shnum * sizeof(Elf64_Shdr);
  uint64_t segments = elf->e_phoff + (uint64_t)elf->e_phnum * sizeof(Elf64_Phdr);
  return sections > segments ? sections : segments;
}

/* The section of that name; NULL if there is none or the image is broken. */
static const Elf64_Shdr *section_find(struct bytes image, const char *prefix, const char *name) {
  const Elf64_Ehdr *elf = at(image, 0, sizeof *elf);
  if (!elf || !starts_with(elf, ELFMAG) || elf->e_shentsize != sizeof(Elf64_Shdr)) return NULL;
  const Elf64_Shdr *sections = at(image, elf->e_shoff, (uint64_t)elf->e_shnum * sizeof *sections);
  if (!sections || elf->e_shstrndx >= elf->e_shnum) return NULL;
  const Elf64_Shdr *strings = &sections[elf->e_shstrndx];
  const char *text = at(image, strings->sh_offset, strings->sh_size);
  size_t prefix_bytes = strlen(prefix), name_bytes = strlen(name) + 1;
  for (size_t i = 0; text && i < elf->e_shnum; i++) {
    uint64_t start = sections[i].sh_name;
    if (start > strings->sh_size || strings->sh_size - start < prefix_bytes + name_bytes) continue;
    if (memcmp(text + start, prefix, prefix_bytes) == 0 &&
        memcmp(text + start + prefix_bytes, name, name_bytes) == 0)
      return &sections[i];
  }
  return NULL;
}

/* One attribute of a kernel's section. */
struct attribute {
  uint8_t format, kind;
  uint16_t value; /* or, in format 4, the bytes that follow */
};
struct param_info {
  uint32_t index;
  uint16_t ordinal, offset;
  uint32_t flags_and_size;
};

/* The next parameter that the section tells of, in any order. */
static const struct param_info *next_param(struct bytes section, size_t *position, size_t *bytes) {
  const struct attribute *attribute;
  while ((attribute = at(section, *position, sizeof *attribute))) {
    size_t payload = *position + sizeof *attribute;
    *position = payload + (attribute->format == 4 ? attribute->value : 0);
    if (attribute->format != 4 || (attribute->kind != INFO_PARAM && attribute->kind != INFO_PARAM_LARGE))
      continue;
    const struct param_info *info = at(section, payload, sizeof *info);
    if (info)
      *bytes =
          attribute->kind == INFO_PARAM ? info->flags_and_size >> PARAM_SIZE_SHIFT : info->flags_and_size;
    return info;
  }
  return NULL;
}

static size_t count_params(struct bytes section) {
  size_t count = 0, bytes;
  for (size_t position = 0; next_param(section, &position, &bytes);)
    count++;
  return count;
}

/* Fails when the ordinals are not 0, 1, 2 ... */
static bool fill_params(struct bytes section, struct rpsim_param *params, size_t count) {
  const struct param_info *info;
  size_t bytes;
  for (size_t position = 0; (info = next_param(section, &position, &bytes));) {
    if (info->ordinal >= count || params[info->ordinal].size) return false;
    params[info->ordinal].offset = info->offset;
    params[info->ordinal].size = bytes;
  }
  return true;
}

static bool elf_kernel(struct bytes image, const char *name, struct rpsim_param **params, size_t *count) {
  const Elf64_Shdr *header = section_find(image, ".nv.info.", name);
  const void *data = header ? at(image, header->sh_offset, header->sh_size) : NULL;
  if (!data) return false;
  struct bytes section = {data, header->sh_size};
  size_t found = count_params(section);
  struct rpsim_param *layout = found ? calloc(found, sizeof *layout) : NULL;
  if (found && (!layout || !fill_params(section, layout, found))) {
    free(layout);
    return false;
  }
  *params = layout;
  *count = found;
  return true;
}

/* ---- fat binaries ---- */

static bool packed_kernel(const struct fat_entry *entry, const void *packed, const char *name,
                          struct rpsim_param **params, size_t *count) {
#ifdef RPSIM_ZSTD
  if (!(entry->flags & ENTRY_ZSTD) || entry->packed_bytes > entry->padded_bytes) return false;
  void *unpacked = malloc(entry->unpacked_bytes + 1);
  if (!unpacked) return false;
  size_t size = ZSTD_decompress(unpacked, entry->unpacked_bytes, packed, entry->packed_bytes);
  bool found = !ZSTD_isError(size) && elf_kernel((struct bytes){unpacked, size}, name, params, count);
  free(unpacked);
  return found;
#else
  (void)entry, (void)packed, (void)name, (void)params, (void)count;
  return false;
#endif
}

static bool entry_kernel(const struct fat_entry *entry, const void *payload, const char *name,
                         struct rpsim_param **params, size_t *count) {
  if (entry->kind != ENTRY_ELF) return false;
  if (entry->flags & ENTRY_PACKED) return packed_kernel(entry, payload, name, params, count);
  return elf_kernel((struct bytes){payload, entry->padded_bytes}, name, params, count);
}

/* The layout is the same for every architecture, so the first image that has the kernel will do. */
static bool fat_kernel(struct bytes image, const char *name, struct rpsim_param **params, size_t *count) {
  const struct fat_header *header = at(image, 0, sizeof *header);
  uint64_t position = header->header_bytes;
  const struct fat_entry *entry;
  while ((entry = at(image, position, sizeof *entry)) && entry->header_bytes >= sizeof *entry) {
    uint64_t start = position + entry->header_bytes;
    const void *payload = at(image, start, entry->padded_bytes);
    if (!payload) return false;
    if (entry_kernel(entry, payload, name, params, count)) return true;
    position = start + entry->padded_bytes;
  }
  return false;
}

size_t sim_image_bytes(const void *image) {
  if (starts_with(image, ELFMAG)) return elf_bytes(image);
  if (!starts_with(image, FAT_MAGIC)) return 0;
  const struct fat_header *header = image;
  return header->header_bytes + header->body_bytes;
}

bool sim_image_kernel(const void *image, const char *name, struct rpsim_param **params, size_t *count) {
  struct bytes all = {image, sim_image_bytes(image)};
  if (starts_with(image, ELFMAG)) return elf_kernel(all, name, params, count);
  return all.size >= sizeof(struct fat_header) && fat_kernel(all, name, params, count);
}
