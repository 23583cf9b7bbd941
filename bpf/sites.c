/* From a file's symbol tables to places to probe. The file belongs to the process that is observed and may be
 * anything: it is read with libelf's bounds checks and never mapped, so that cutting it short meanwhile is an
 * error and not a signal. */
#include "bpf/sites.h"

#include <gelf.h>
#include <libelf.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bpf/functions.h"

/* Longest run of symbols that is believed; what is behind it would be a damaged file. */
#define SYMBOLS_MAX (16u << 20)

struct reading {
  Elf *elf;
  int fd;
  struct rp_sites *out;
  size_t capacity, refused_capacity;
};

/* Room for one more element in a growing array; false without memory. */
static bool grow(void **array, size_t count, size_t *capacity, size_t size) {
  if (count < *capacity) return true;
  size_t wanted = *capacity ? 2 * *capacity : 32;
  void *grown = realloc(*array, wanted * size);
  if (!grown) return false;
  *array = grown;
  *capacity = wanted;
  return true;
}

/* ---- one symbol ---- */

/* File offset of an address in an executable segment; 0 if it lies in none. */
static uint64_t offset_of(const struct reading *r, uint64_t address) {
  size_t count;
  GElf_Phdr header;
  if (elf_getphdrnum(r->elf, &count) != 0) return 0;
  for (size_t i = 0; i < count && gelf_getphdr(r->elf, (int)i, &header); i++) {
    if (header.p_type != PT_LOAD || !(header.p_flags & PF_X)) continue;
    if (address >= header.p_vaddr && address - header.p_vaddr < header.p_filesz)
      return address - header.p_vaddr + header.p_offset;
  }
  return 0;
}

static bool is_nop5(const unsigned char *code) {
  return memcmp(code, "\x0f\x1f\x44\x00\x00", 5) == 0;
}

/* Moves past a landing pad, which the kernel would have to single-step, and tells why the place cannot be
 * probed. On newer kernels a five-byte nop becomes a call into a page of the process, which a child made by
 * fork lacks: it would crash there. */
static const char *check_code(const struct reading *r, uint64_t *offset) {
  unsigned char code[16];
  if (pread(r->fd, code, sizeof code, (off_t)*offset) != (ssize_t)sizeof code)
    return "its code is not in the file";
  size_t skip = memcmp(code, "\xf3\x0f\x1e\xfa", 4) == 0 ? 4 : 0;
  if (is_nop5(code + skip)) return "begins with a five-byte nop, where a probe can crash forked children";
  *offset += skip;
  return NULL;
}

static rp_status refuse(struct reading *r, int function, const char *reason) {
  struct rp_sites *out = r->out;
  for (size_t i = 0; i < out->refused_count; i++)
    if (out->refused[i].function == function) return RP_OK;
  if (!grow((void **)&out->refused, out->refused_count, &r->refused_capacity, sizeof *out->refused))
    return RP_ERROR_NO_MEMORY;
  out->refused[out->refused_count++] = (struct rp_site_refusal){function, reason};
  return RP_OK;
}

static rp_status add_site(struct reading *r, int function, uint64_t offset) {
  struct rp_sites *out = r->out;
  for (size_t i = 0; i < out->count; i++)
    if (out->sites[i].offset == offset) return RP_OK; /* an alias, or the same symbol in both tables */
  if (!grow((void **)&out->sites, out->count, &r->capacity, sizeof *out->sites)) return RP_ERROR_NO_MEMORY;
  out->sites[out->count++] = (struct rp_site){offset, function};
  return RP_OK;
}

static rp_status take_symbol(struct reading *r, const GElf_Sym *symbol, const char *name) {
  if (symbol->st_shndx == SHN_UNDEF || GELF_ST_TYPE(symbol->st_info) != STT_FUNC || !name) return RP_OK;
  int function = rp_probe_function_find(name);
  if (function < 0) return RP_OK;
  uint64_t offset = offset_of(r, symbol->st_value);
  if (!offset) return refuse(r, function, "its symbol points outside the code");
  const char *reason = check_code(r, &offset);
  return reason ? refuse(r, function, reason) : add_site(r, function, offset);
}

/* ---- the tables ---- */

static rp_status take_table(struct reading *r, Elf_Scn *section, const GElf_Shdr *header) {
  Elf_Data *data = elf_getdata(section, NULL);
  size_t count = header->sh_entsize ? header->sh_size / header->sh_entsize : 0;
  if (!data || count > SYMBOLS_MAX) return RP_ERROR_SYNTAX;
  rp_status status = RP_OK;
  for (size_t i = 1; i < count && status == RP_OK; i++) {
    GElf_Sym symbol;
    if (!gelf_getsym(data, (int)i, &symbol)) return RP_ERROR_SYNTAX;
    if (symbol.st_name) status = take_symbol(r, &symbol, elf_strptr(r->elf, header->sh_link, symbol.st_name));
  }
  return status;
}

static rp_status take_tables(struct reading *r) {
  Elf_Scn *section = NULL;
  rp_status status = RP_OK;
  while (status == RP_OK && (section = elf_nextscn(r->elf, section))) {
    GElf_Shdr header;
    if (!gelf_getshdr(section, &header)) return RP_ERROR_SYNTAX;
    if (header.sh_type == SHT_DYNSYM || header.sh_type == SHT_SYMTAB)
      status = take_table(r, section, &header);
  }
  return status;
}

/* ---- the build id ---- */

static bool take_note(struct reading *r, Elf_Data *data) {
  GElf_Nhdr note;
  size_t at = 0, name, descriptor, next;
  while ((next = gelf_getnote(data, at, &note, &name, &descriptor)) > 0) {
    const unsigned char *bytes = (const unsigned char *)data->d_buf;
    if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == 4 && memcmp(bytes + name, "GNU", 4) == 0) {
      size_t length = note.n_descsz < 20 ? note.n_descsz : 20;
      for (size_t i = 0; i < length; i++)
        snprintf(r->out->build_id + 2 * i, 3, "%02x", bytes[descriptor + i]);
      return true;
    }
    at = next;
  }
  return false;
}

static void take_build_id(struct reading *r) {
  size_t count;
  GElf_Phdr header;
  if (elf_getphdrnum(r->elf, &count) != 0) return;
  for (size_t i = 0; i < count && gelf_getphdr(r->elf, (int)i, &header); i++) {
    if (header.p_type != PT_NOTE) continue;
    Elf_Type type = header.p_align == 8 ? ELF_T_NHDR8 : ELF_T_NHDR;
    Elf_Data *data = elf_getdata_rawchunk(r->elf, (int64_t)header.p_offset, header.p_filesz, type);
    if (data && take_note(r, data)) return;
  }
}

/* ---- the file ---- */

static int by_offset(const void *left, const void *right) {
  const struct rp_site *a = left, *b = right;
  return (a->offset > b->offset) - (a->offset < b->offset);
}

/* A name that was refused at one place and found at another can be probed after all. */
static void forgive(struct rp_sites *sites) {
  size_t kept = 0;
  for (size_t i = 0; i < sites->refused_count; i++) {
    bool found = false;
    for (size_t j = 0; j < sites->count; j++)
      found |= sites->sites[j].function == sites->refused[i].function;
    if (!found) sites->refused[kept++] = sites->refused[i];
  }
  sites->refused_count = kept;
}

static rp_status read_elf(struct reading *r) {
  GElf_Ehdr header;
  if (elf_kind(r->elf) != ELF_K_ELF || !gelf_getehdr(r->elf, &header)) return RP_ERROR_SYNTAX;
  if (gelf_getclass(r->elf) != ELFCLASS64 || header.e_machine != EM_X86_64) return RP_ERROR_VERSION;
  rp_status status = take_tables(r);
  if (status != RP_OK) return status;
  if (r->out->count == 0 && r->out->refused_count == 0) return RP_ERROR_NOT_FOUND;
  if (r->out->count) qsort(r->out->sites, r->out->count, sizeof *r->out->sites, by_offset);
  forgive(r->out);
  take_build_id(r);
  return RP_OK;
}

rp_status rp_sites_read(int fd, struct rp_sites *out) {
  *out = (struct rp_sites){0};
  if (elf_version(EV_CURRENT) == EV_NONE) return RP_ERROR_VERSION;
  Elf *elf = elf_begin(fd, ELF_C_READ, NULL);
  if (!elf) return RP_ERROR_SYNTAX;
  struct reading r = {.elf = elf, .fd = fd, .out = out};
  rp_status status = read_elf(&r);
  (void)elf_end(elf);
  if (status != RP_OK) rp_sites_fini(out);
  return status;
}

void rp_sites_fini(struct rp_sites *sites) {
  free(sites->sites);
  free(sites->refused);
  *sites = (struct rp_sites){0};
}
