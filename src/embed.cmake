# cmake -DFOLDER=DIR -DOUTPUT=FILE -P embed.cmake: the files of DIR as the table of spec/shipped.h.
file(GLOB_RECURSE paths RELATIVE ${FOLDER} ${FOLDER}/*.yaml)
list(SORT paths)
set(rows "")
foreach(path IN LISTS paths)
  file(READ ${FOLDER}/${path} text)
  string(APPEND rows "    {R\"embed(${path})embed\", R\"embed(${text})embed\"},\n")
endforeach()
file(WRITE ${OUTPUT} "#include \"spec/shipped.h\"

namespace shardinit {

std::span<const ShippedFile> ShippedFiles() {
  static constexpr ShippedFile kFiles[] = {
${rows}  };
  return kFiles;
}

}  // namespace shardinit
")
