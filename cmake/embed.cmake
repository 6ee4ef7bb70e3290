# Text files as C++ string views, built into the program.
#   cmake -DOUT=file.cc -DHEADER=room/assets.h -DNAMESPACE=tally::room "-DVIEWS=kName=a.js,b.js;kOther=c.css" -P embed.cmake
# A view is its files one after the other. The compiler allows no literal of any length, so they come in pieces of lines.
set(text "#include \"${HEADER}\"\n\nnamespace ${NAMESPACE} {\n")
foreach(view IN LISTS VIEWS)
  string(REGEX MATCH "^([^=]+)=(.*)$" _ "${view}")
  set(name ${CMAKE_MATCH_1})
  string(REPLACE "," ";" files "${CMAKE_MATCH_2}")
  string(APPEND text "const std::string_view ${name} =\n")
  foreach(path IN LISTS files)
    file(READ "${path}" content)
    string(APPEND text "R\"embedded(${content})embedded\"\n")
  endforeach()
  string(APPEND text ";\n")
endforeach()
string(APPEND text "}  // namespace ${NAMESPACE}\n")
file(WRITE "${OUT}" "${text}")
